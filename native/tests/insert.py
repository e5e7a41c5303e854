"""Inserts jobs of one user with River's client for Python. Arguments: the database's URL, the user's id, how many."""

import json
import sys

import riverqueue
import sqlalchemy
from riverqueue.driver import riversqlalchemy


class Analyze:
    kind = "analysis:analyze"

    def __init__(self, user_id, n):
        self.user_id = user_id
        self.n = n

    def to_json(self):
        return json.dumps({"user_id": self.user_id, "n": self.n})


url, user_id, jobs = sys.argv[1:]
engine = sqlalchemy.create_engine(url.replace("postgres://", "postgresql+psycopg2://", 1))
with engine.begin() as connection:
    client = riverqueue.Client(riversqlalchemy.Driver(connection))
    options = riverqueue.InsertOpts(queue="analysis_default")
    inserted = client.insert_many(
        [riverqueue.InsertManyParams(Analyze(user_id, n), insert_opts=options) for n in range(int(jobs))]
    )
print(inserted)
