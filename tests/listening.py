"""A server of a test's own on 127.0.0.1, for as long as a block runs."""

import threading
from contextlib import contextmanager
from http.server import ThreadingHTTPServer


@contextmanager
def listening(handler):
    """Serves until the block ends; the base address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
