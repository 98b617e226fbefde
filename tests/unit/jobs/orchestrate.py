"""An orchestrator of jobs alone: `python -m tests.unit.jobs.orchestrate FOLDER [STEP...]`, each step as JSON.

Submits work when there are steps, waits until every job has ended, prints the jobs as JSON. TERM closes it.
"""

import asyncio
import json
import signal
import sys
from pathlib import Path

import uvloop

from orchestrator.db import Database
from orchestrator.jobs import Jobs
from tests.unit.jobs.kinds import KINDS


async def main(folder: Path, steps: list[str]) -> None:
    this = asyncio.current_task()
    assert this is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, this.cancel)
    with Database(folder / "state") as database:
        jobs = Jobs(database, KINDS)
        try:
            await jobs.open()
            if steps:
                request = {"steps": [json.loads(step) for step in steps], "result": {"n": 1}}
                job = await jobs.submit("toy", "a toy", request, key="k", idempotency_key="k")
                await asyncio.to_thread((folder / "acknowledged").write_text, job.id)
            for job in jobs.list().jobs:
                await jobs.wait(job.id)
            print(jobs.list().model_dump_json())
        finally:
            await jobs.close()


if __name__ == "__main__":
    uvloop.run(main(Path(sys.argv[1]), sys.argv[2:]))
