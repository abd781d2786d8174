#!/usr/bin/env python3
"""A slow cable: forwards frames between two interfaces with a delay, for kernels whose tc has no
netem.

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
    # Keeps the virtio header of each frame, which marks work left to the hardware (checksums).
    end.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 26)
    end.bind((interface, 0))
    end.setblocking(False)
    return end


def main():
    left, right = open_end(sys.argv[1]), open_end(sys.argv[2])
    delay = float(sys.argv[3]) / 1000
    other = {left: right, right: left}
    waiting = collections.deque()  # all frames have the same delay, so first in is first out
    while True:
        timeout = max(0, waiting[0][0] - time.monotonic()) if waiting else None
        for end in select.select([left, right], [], [], timeout)[0]:
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
                pass  # a lost frame; TCP sends it again


main()
