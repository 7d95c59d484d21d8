#!/usr/bin/env python3
"""What MSG_ZEROCOPY brings on a path: rate, the sender's CPU seconds per GB, and the share that the kernel copied all the same.

bench-zerocopy.py                      over loopback, within one host
bench-zerocopy.py receive              on the far host, until it is interrupted
bench-zerocopy.py send HOST            to that host

Environment: GB (default 4) for each run, RUNS (default 3, interleaved), PORT (default 5999). Writes of 256 KiB, as haul's. The kernel says of
each send whether its pages went to the device as they were (SO_EE_CODE_ZEROCOPY_COPIED, Documentation/networking/msg_zerocopy.rst).
"""
import errno
import os
import resource
import socket
import struct
import sys
import threading
import time

SO_ZEROCOPY, MSG_ZEROCOPY, ORIGIN_ZEROCOPY = 60, 0x4000000, 5
PORT = int(os.environ.get("PORT", "5999"))
TOTAL = int(float(os.environ.get("GB", "4")) * 1e9)
RUNS = int(os.environ.get("RUNS", "3"))
BLOCK = bytes(256 * 1024)


def receive(listener):
    space = bytearray(1 << 20)
    while True:
        connection, _ = listener.accept()
        while connection.recv_into(space):
            pass
        connection.close()


def reap(connection, counts):
    """Takes the kernel's notes of sends that are done: how many, and how many of them were copied."""
    while True:
        try:
            ancillary = connection.recvmsg(0, 512, socket.MSG_ERRQUEUE)[1]
        except BlockingIOError:
            return
        for _, _, note in ancillary:
            _, origin, _, code, _, first, last = struct.unpack("=IBBBBII", note[:16])
            if origin == ORIGIN_ZEROCOPY:
                counts[0] += last - first + 1
                counts[1] += (last - first + 1) * (code & 1)


def send(host, zero_copy):
    connection = socket.create_connection((host, PORT))
    if zero_copy:
        connection.setsockopt(socket.SOL_SOCKET, SO_ZEROCOPY, 1)
    counts, sent, sends = [0, 0], 0, 0
    begun, before = time.monotonic(), resource.getrusage(resource.RUSAGE_THREAD)
    while sent < TOTAL:
        try:
            sent += connection.send(BLOCK, MSG_ZEROCOPY if zero_copy else 0)
            sends += 1
        except OSError as error:
            if error.errno != errno.ENOBUFS:
                raise
            time.sleep(0.001)
        if zero_copy and sends % 64 == 0:
            reap(connection, counts)
    took, after = time.monotonic() - begun, resource.getrusage(resource.RUSAGE_THREAD)
    while zero_copy and counts[0] < sends and time.monotonic() < begun + took + 5:
        time.sleep(0.01)
        reap(connection, counts)
    connection.close()
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    copied = f", {100 * counts[1] / max(counts[0], 1):.0f} % of {counts[0]} sends copied" if zero_copy else ""
    print(f"{'MSG_ZEROCOPY' if zero_copy else 'plain':12} {sent / took / 1e9:.2f} GB/s, {cpu / sent * 1e9:.3f} CPU s/GB{copied}", flush=True)


def main(words):
    if words == ["receive"]:
        receive(socket.create_server(("0.0.0.0", PORT)))
    if words and (words[0] != "send" or len(words) != 2):
        sys.exit(__doc__)
    if not words:
        listener = socket.create_server(("127.0.0.1", PORT))
        threading.Thread(target=receive, args=[listener], daemon=True).start()
    for _ in range(RUNS):
        for zero_copy in [False, True]:
            send(words[1] if words else "127.0.0.1", zero_copy)


if __name__ == "__main__":
    main(sys.argv[1:])
