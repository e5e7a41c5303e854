"""The program that `weir work` runs in the conformance suite. conformance.rs describes the arguments."""

import json
import os
import signal
import sys
import time


def stop(*_):
    if not args.get("ignores"):
        sys.exit("stopped")


args = json.load(sys.stdin)
attempt = int(os.environ["WEIR_ATTEMPT"])
signal.signal(signal.SIGTERM, stop)
if attempt <= args.get("attempts", 1):
    if "fails" in args:
        sys.stderr.buffer.write({"nul": b"out of \0paper", "half": b"out of \xffpaper"}.get(args["fails"], b"it fails"))
        sys.exit(1)
    until = time.monotonic() + args.get("seconds", 0)
    while time.monotonic() < until:
        if "file" in args:
            with open(args["file"], "a") as file:
                file.write(f"{os.environ['WEIR_JOB_ID']} {attempt} {time.time()}\n")
        time.sleep(0.05)
print(json.dumps({"text": "\0" if "nul" in args else "x" * args.get("size", 0)}))
