"""Orders with a job each. The API submits with SQLAlchemy, and a worker runs in the same process."""

import asyncio
import os
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from weir import AsyncWeir

url = os.environ["DATABASE_URL"]
engine = create_async_engine("postgresql+asyncpg://" + url.split("://", 1)[1])
new_session = async_sessionmaker(engine)
weir = AsyncWeir("weir")


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str]
    pages: Mapped[int]
    pdf: Mapped[str | None]


async def render(connection, job):
    """The row and the completion of the job are committed together."""
    await asyncio.sleep(0.1 * job.args["pages"])
    await connection.execute("UPDATE orders SET pdf = %s WHERE id = %s", (f"{job.id}.pdf", job.args["order"]))


@asynccontextmanager
async def lifespan(_app):
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    stop = asyncio.Event()
    queues = ["render_priority", "render_default"]
    work = asyncio.create_task(weir.work(url, queues, render, concurrency=10, stop=stop))
    yield
    stop.set()
    await work
    await engine.dispose()


app = FastAPI(lifespan=lifespan)


class NewOrder(BaseModel):
    # In your product, the customer comes from the session or token.
    customer: str
    pages: int


@app.post("/orders", status_code=202)
async def place(new: NewOrder):
    """The order and its job exist together or not at all."""
    async with new_session.begin() as session:
        order = Order(customer=new.customer, pages=new.pages)
        session.add(order)
        await session.flush()
        args = {"order": order.id, "pages": new.pages}
        submitted = await weir.submit(session, new.customer, "render", args)
        if submitted.job_id is None:
            raise HTTPException(429, submitted.outcome)
        return {"order": order.id, "outcome": submitted.outcome}


@app.get("/orders/{number}")
async def read(number: int):
    async with new_session() as session:
        order = await session.get(Order, number)
        if order is None:
            raise HTTPException(404)
        return {"pages": order.pages, "pdf": order.pdf}
