#!/usr/bin/env python3
"""A slow cable: carries frames between two interfaces and holds each for a while. Where the kernel has netem, tc does it.

    bench/cable.py LEFT RIGHT MILLISECONDS
"""
import collections
import select
import socket
import sys
import time

SOL_PACKET, PACKET_VNET_HDR, PACKET_OUTGOING, ETH_P_ALL = 263, 15, 4, 3


def open_end(interface):
    end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    # The header in front of a frame says what the sender left to the hardware (checksums): handed on as it is.
    end.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 26)
    end.bind((interface, 0))
    end.setblocking(False)
    return end


def main():
    left, right = open_end(sys.argv[1]), open_end(sys.argv[2])
    delay = float(sys.argv[3]) / 1000
    other = {left: right, right: left}
    waiting = collections.deque()  # all are held equally long: what comes first leaves first
    while True:
        rest = max(0, waiting[0][0] - time.monotonic()) if waiting else None
        for end in select.select([left, right], [], [], rest)[0]:
            try:
                frame, address = end.recvfrom(1 << 17)
            except BlockingIOError:
                continue
            if address[2] != PACKET_OUTGOING:
                waiting.append((time.monotonic() + delay, other[end], frame))
        while waiting and waiting[0][0] <= time.monotonic():
            _, end, frame = waiting.popleft()
            try:
                end.send(frame)
            except OSError:
                pass  # a cable loses frames, too: TCP sends them again


main()
