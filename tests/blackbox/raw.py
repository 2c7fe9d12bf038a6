"""A client that says exactly what it is told, and reads answers strictly."""

import json
import socket
import struct

from harness import PATIENCE


class Raw:
    """A TCP connection to a server."""

    def __init__(self, server, timeout=20.0):
        self.socket = socket.create_connection(("127.0.0.1", server.port), timeout * PATIENCE)
        self.pending = b""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def send(self, data):
        """Sends what can be sent: a server may have closed already. Returns self."""
        try:
            self.socket.sendall(data)
        except OSError:
            pass
        return self

    def close(self):
        self.socket.close()

    def reset(self):
        """Closes with a RST instead of a FIN."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def more(self):
        """What comes next; nothing when the server has closed."""
        try:
            return self.socket.recv(65536)
        except ConnectionResetError:
            return b""

    def until(self, mark):
        """Everything up to and with the mark, which must come."""
        while mark not in self.pending:
            part = self.more()
            assert part, f"closed before {mark}: {self.pending[-300:]}"
            self.pending += part
        head, _, self.pending = self.pending.partition(mark)
        return head + mark

    def answer(self):
        """One answer with a Content-Length: (status, headers, body)."""
        head = self.until(b"\r\n\r\n").decode("ascii").split("\r\n")
        version, status, _ = head[0].split(" ", 2)
        assert version == "HTTP/1.1", head[0]
        headers = {}
        for line in head[1:-2]:
            name, value = line.split(": ", 1)
            assert name.lower() not in headers, f"two {name}"
            headers[name.lower()] = value
        length = int(headers["content-length"])
        while len(self.pending) < length:
            part = self.more()
            assert part, f"closed within the body: {self.pending}"
            self.pending += part
        body, self.pending = self.pending[:length], self.pending[length:]
        return int(status), headers, body

    def error(self):
        """An answer that must be our error object: (status, headers, error)."""
        status, headers, body = self.answer()
        assert headers["content-type"] == "application/json", headers
        assert headers["x-request-id"], headers
        error = json.loads(body)["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return status, headers, error

    def is_closed(self):
        """True when the server closes without another byte."""
        return self.pending + self.more() == b""
