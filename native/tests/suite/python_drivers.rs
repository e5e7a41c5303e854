//! Submissions from Python in the transactions of other libraries, with the types that they declare.

use crate::common::Weir;
use crate::common::fleet::{CLIENTS, output, row_count};
use crate::common::programs;
use std::path::PathBuf;
use std::process::Command;

const PACKAGES: [&str; 6] = [
    "psycopg[binary]==3.3.9",
    "mypy==2.4.1",
    "SQLAlchemy[asyncio]==2.1.9",
    "asyncpg==0.32.0",
    "Django==5.2.19",
    "psycopg2-binary==2.9.13",
];

/// Submits once in a transaction that is committed and once in one that is rolled back, by each library. Runs in two
/// schemas.
const PROGRAM: &str = r#"
import asyncio
import os
from datetime import datetime, timedelta, timezone
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import django
import psycopg2
from django.conf import settings
from django.db import connection as django_connection
from django.db import transaction
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from weir import AsyncWeir, Submitted, Weir

url, subject = os.environ["DATABASE_URL"], os.environ["SUBJECT"]
server = urlsplit(url)
weir, later = Weir(), AsyncWeir()
schema = os.environ.get("SCHEMA")
if schema:
    weir, later = Weir(schema), AsyncWeir(schema)
INSERT = "INSERT INTO orders (number) VALUES (1)"
RUN_AT = datetime.now(timezone.utc) + timedelta(hours=1)
ARGS = {"text": "it's 100% :sure, $1 \\ \u2713"}


class Undo(Exception):
    pass


def check(name: str, submitted: Submitted) -> None:
    assert submitted.outcome in ("admitted", "parked"), submitted
    assert isinstance(submitted.job_id, int), submitted
    assert submitted.quota is not None and submitted.quota["reserved"] >= 3, submitted
    print(name)


def url_for(driver: str) -> str:
    return url.replace("postgresql://", f"postgresql+{driver}://", 1).replace("postgres://", f"postgresql+{driver}://", 1)


def with_sqlalchemy(driver: str) -> None:
    engine = create_engine(url_for(driver))
    for undo in (False, True):
        try:
            with engine.begin() as connection:
                connection.execute(text(INSERT))
                options: Any = {"run_at": RUN_AT, "tags": ["abc"], "expires_in": 600}
                check(driver, weir.submit(connection, subject, "analysis", ARGS, 3, **options))
                if undo:
                    raise Undo()
        except Undo:
            pass
        with Session(engine) as session:
            session.execute(text(INSERT))
            check(driver, weir.submit(session, subject, "analysis", ARGS, 3))
            if not undo:
                session.commit()
    engine.dispose()


async def with_async_sqlalchemy(driver: str) -> None:
    engine = create_async_engine(url_for(driver))
    for undo in (False, True):
        try:
            async with engine.begin() as connection:
                await connection.execute(text(INSERT))
                options: Any = {"run_at": RUN_AT, "tags": ["abc"], "expires_in": 600}
                check(driver, await later.submit(connection, subject, "analysis", ARGS, 3, **options))
                if undo:
                    raise Undo()
        except Undo:
            pass
        async with AsyncSession(engine) as session:
            await session.execute(text(INSERT))
            check(driver, await later.submit(session, subject, "analysis", ARGS, 3))
            if not undo:
                await session.commit()
    await engine.dispose()


async def with_the_other_class() -> None:
    """The error names the class to use."""
    engine, later_engine = create_engine(url_for("psycopg2")), create_async_engine(url_for("asyncpg"))
    mistaken: Any = weir
    async with later_engine.connect() as connection, AsyncSession(later_engine) as session:
        for wrong in (connection, session):
            try:
                mistaken.submit(wrong, subject, "analysis", ARGS, 3)
            except TypeError as error:
                print(error)
    await later_engine.dispose()
    mistaken = later
    for kind in (engine.connect, lambda: Session(engine)):
        with kind() as other:
            try:
                await mistaken.submit(other, subject, "analysis", ARGS, 3)
            except TypeError as error:
                print(error)


async def with_asyncpg() -> None:
    connection = await asyncpg.connect(url)
    pool = await asyncpg.create_pool(url, min_size=1)
    for undo in (False, True):
        try:
            async with connection.transaction(), pool.acquire() as pooled, pooled.transaction():
                await connection.execute(INSERT)
                check("asyncpg", await later.submit(connection, subject, "analysis", ARGS, 3, key=f"key {undo}"))
                if undo:
                    raise Undo()
        except Undo:
            pass
        try:
            async with pool.acquire() as pooled, pooled.transaction():
                await pooled.execute(INSERT)
                check("asyncpg", await later.submit(pooled, subject, "analysis", ARGS, 3))
                if undo:
                    raise Undo()
        except Undo:
            pass
    await pool.close()
    await connection.close()


def with_django() -> None:
    database = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": server.path[1:],
        "HOST": server.hostname,
        "PORT": server.port,
        "USER": server.username,
        "PASSWORD": server.password,
    }
    settings.configure(DATABASES={"default": database})
    django.setup()
    for undo in (False, True):
        try:
            with transaction.atomic():
                with django_connection.cursor() as cursor:
                    cursor.execute(INSERT)
                check("django", weir.submit(django_connection, subject, "analysis", ARGS, 3))
                if undo:
                    raise Undo()
        except Undo:
            pass
    django_connection.close()


def with_psycopg2() -> None:
    connection: Any = psycopg2.connect(url)
    for undo in (False, True):
        with connection.cursor() as cursor:
            cursor.execute(INSERT)
        check("psycopg2", weir.submit(connection, subject, "analysis", ARGS, 3))
        connection.rollback() if undo else connection.commit()
    connection.close()


async def main() -> None:
    await with_asyncpg()
    for driver in ("asyncpg", "psycopg"):
        await with_async_sqlalchemy(driver)
    await with_the_other_class()


for driver in ("psycopg", "psycopg2"):
    with_sqlalchemy(driver)
with_django()
with_psycopg2()
asyncio.run(main())
"#;

/// An asynchronous session must not be accepted where its result would not be awaited, nor the reverse.
const MISTAKES: &str = "
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session
from weir import AsyncWeir, Weir

def mistake(session: AsyncSession) -> None:
    Weir().submit(session, 'anne', 'analysis', {})

async def other(session: Session) -> None:
    await AsyncWeir().submit(session, 'anne', 'analysis', {})
";

#[tokio::test(flavor = "multi_thread")]
async fn python_submits_in_transactions_of_other_libraries() {
    let name = PACKAGES.join("-").replace(['[', ']'], "-").replace("==", "-");
    let made = tokio::task::spawn_blocking(move || programs::python(&name, &PACKAGES));
    let Some(python) = made.await.unwrap() else { return };
    let folder = std::env::temp_dir().join(format!("weir-drivers-{}", uuid::Uuid::new_v4().simple()));
    std::fs::create_dir(&folder).unwrap();
    let (file, mistakes) = (folder.join("program.py"), folder.join("mistakes.py"));
    std::fs::write(&file, PROGRAM).unwrap();
    std::fs::write(&mistakes, MISTAKES).unwrap();
    let mypy = |file: &PathBuf| {
        let mut mypy = Command::new(&python);
        mypy.args([
            "-m",
            "mypy",
            "--strict",
            "--allow-untyped-calls",
            "--follow-untyped-imports",
            "--cache-dir",
        ])
        .arg(folder.join("cache"))
        .arg(file)
        .env("MYPYPATH", format!("{CLIENTS}/python"));
        let output = mypy.output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let checked = mypy(&file);
    assert!(checked.contains("no issues found"), "{checked}");
    let checked = mypy(&mistakes);
    assert_eq!(checked.matches("[arg-type]").count(), 2, "{checked}");

    for schema in [None, Some("Odd-Schema")] {
        let weir = Weir::with(schema.map(|name| ("WEIR_SCHEMA", name)).as_slice()).await;
        let client = weir.client().await;
        client
            .batch_execute("CREATE TABLE public.orders (number int NOT NULL)")
            .await
            .unwrap();
        let user = weir.user("enterprise").await.to_string();
        let start = "import os, sys; sys.path.insert(0, sys.argv[1]); os.environ.update(SUBJECT=sys.argv[2], SCHEMA=sys.argv[3]); \
                     exec(compile(open(sys.argv[4]).read(), sys.argv[4], 'exec'))";
        let program = [python.clone(), "-c".into(), start.into()];
        let args = [
            &format!("{CLIENTS}/python"),
            &user,
            schema.unwrap_or_default(),
            file.to_str().unwrap(),
        ];
        let printed = output(&weir, &program, &args).await;
        // Two for each of four drivers of SQLAlchemy, asyncpg twice, Django, and psycopg2: committed, and rolled back.
        let times = 4 * 2 + 2 + 1 + 1;
        for mistake in [
            "the connection is asynchronous; use AsyncWeir",
            "the connection is synchronous; use Weir",
        ] {
            assert_eq!(
                printed.lines().filter(|line| *line == mistake).count(),
                2,
                "{printed}"
            );
        }
        assert_eq!(printed.lines().count(), 2 * times + 4, "{printed}");
        let times = i64::try_from(times).unwrap();
        for table in ["public.orders", "river_job"] {
            assert_eq!(row_count(&client, table).await, times, "{table}");
        }
        let same = "river_job WHERE args ->> 'text' = E'it''s 100% :sure, $1 \\\\ \u{2713}'";
        assert_eq!(row_count(&client, same).await, times);
        // One of each driver of SQLAlchemy.
        let expiring = "river_job WHERE metadata -> 'weir:expires_in' = '600'";
        assert_eq!(row_count(&client, expiring).await, 4);
        weir.end().await;
    }
    std::fs::remove_dir_all(folder).unwrap();
}
