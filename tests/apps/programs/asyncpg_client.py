"""``asyncpg_client.py LOOP PORT``: works with a PostgreSQL, and prints what was right, as JSON."""

from __future__ import annotations

import asyncio
import io
import json
import sys
from typing import Any

import asyncpg
from common import BIG, HOST, pattern, run

ROWS = 10_000


async def queries(connection: asyncpg.Connection) -> dict[str, bool]:
    right = {}
    numbers = await connection.fetch("SELECT number, number * 2 AS twice FROM generate_series(1, $1::int) number", ROWS)
    right["rows"] = [tuple(row) for row in numbers] == [(number, 2 * number) for number in range(1, ROWS + 1)]
    statement = await connection.prepare("SELECT $1::text || $2::int")
    words = [await statement.fetchval("number ", number) for number in range(300)]
    right["prepared"] = words == [f"number {number}" for number in range(300)]
    large = pattern(BIG)
    right["large"] = await connection.fetchval("SELECT $1::bytea", large) == large
    async with connection.transaction():
        cursor = connection.cursor("SELECT * FROM generate_series(1, 1000)", prefetch=50)
        right["cursor"] = [row[0] async for row in cursor] == list(range(1, 1001))
    return right


async def changes(connection: asyncpg.Connection) -> dict[str, bool]:
    right = {}
    await connection.execute("CREATE TEMPORARY TABLE things (id int PRIMARY KEY, what text)")
    records = [(number, f"thing {number} é") for number in range(ROWS)]
    await connection.copy_records_to_table("things", records=records)
    file = io.BytesIO()
    await connection.copy_from_query("SELECT * FROM things ORDER BY id", output=file)
    right["copy"] = file.getvalue().decode() == "".join(f"{number}\t{what}\n" for number, what in records)
    try:
        async with connection.transaction():
            await connection.execute("DELETE FROM things")
            raise LookupError
    except LookupError:
        right["rolled back"] = await connection.fetchval("SELECT count(*) FROM things") == ROWS
    async with connection.transaction():
        await connection.executemany("DELETE FROM things WHERE id = $1", [(number,) for number in range(0, ROWS, 2)])
    right["committed"] = await connection.fetchval("SELECT count(*) FROM things") == ROWS // 2
    try:
        await connection.execute("INSERT INTO things VALUES (1, 'twice')")
    except asyncpg.UniqueViolationError:
        right["error"] = await connection.fetchval("SELECT 1") == 1
    return right


async def notices(connection: asyncpg.Connection) -> bool:
    """What is notified comes to who listens."""
    heard: asyncio.Queue[Any] = asyncio.Queue()
    await connection.add_listener("news", lambda *told: heard.put_nowait(told[-1]))
    await connection.execute("NOTIFY news, 'hello'")
    return await heard.get() == "hello"


async def cancelled(connection: asyncpg.Connection) -> bool:
    """A query that is given up is cancelled, over a connection of its own, and the connection goes on."""
    try:
        await connection.execute("SELECT pg_sleep(60)", timeout=0.2)
    except TimeoutError:
        return await connection.fetchval("SELECT 2") == 2
    return False


async def main(port: str) -> None:
    connection = await asyncpg.connect(host=HOST, port=int(port), user="postgres")
    right = await queries(connection) | await changes(connection)
    right["notice"] = await notices(connection)
    right["cancelled"] = await cancelled(connection)
    await connection.close()
    async with asyncpg.create_pool(host=HOST, port=int(port), user="postgres", min_size=4, max_size=4) as pool:
        answers = await asyncio.gather(*(pool.fetchval("SELECT $1::int", number) for number in range(50)))
        right["pool"] = answers == list(range(50))
    print(json.dumps(right))


if __name__ == "__main__":
    run(sys.argv[1], main(sys.argv[2]))
