"""Headless Chromium, driven over its debugging port by the DevTools protocol."""

import contextlib
import itertools
import json
import pathlib
import shutil
import subprocess
import time
import urllib.request

import websocket

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = [
  "--headless",
  "--no-sandbox",
  "--disable-gpu",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
  "--remote-debugging-port=0",
  "--remote-allow-origins=*",
  "--window-size=1280,1000",
]


class Page:
  """One tab, by the DevTools protocol.

  Attributes:
    errors: what was thrown or written to the console as an error or warning.
    requests: every address that was asked for.
  """

  def __init__(self, socket):
    self._socket, self._ids = socket, itertools.count(1)
    self.errors, self.requests = [], []
    for domain in ("Runtime", "Log", "Network", "Page"):
      self.call(f"{domain}.enable")

  def call(self, method, **params):
    """A command's result; events that come before it are noted."""
    number = next(self._ids)
    self._socket.send(json.dumps({"id": number, "method": method, "params": params}))
    while True:
      message = json.loads(self._socket.recv())
      if message.get("id") == number:
        assert "error" not in message, message
        return message["result"]
      self._note(message.get("method"), message.get("params", {}))

  def _note(self, event, params):
    if event == "Network.requestWillBeSent":
      self.requests.append(params["request"]["url"])
    is_error = event == "Runtime.exceptionThrown" or (
      event == "Log.entryAdded" and params["entry"]["level"] != "verbose"
    )
    if is_error or (event == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert")):
      self.errors.append(params)

  def run(self, expression):
    """The value of an expression in the page, awaited."""
    result = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
    assert "exceptionDetails" not in result, result
    return result["result"].get("value")

  def open(self, path, scheme="light"):
    self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    self.call("Page.navigate", url=path.as_uri())
    deadline = time.monotonic() + 60
    while not self.run("document.readyState === 'complete' && location.protocol === 'file:'"):
      assert time.monotonic() < deadline, "the page did not load"
      time.sleep(0.05)
    self.settle()

  def settle(self):
    """Waits until what is pending has been drawn."""
    self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

  def press(self, key):
    for kind in ("keyDown", "keyUp"):
      text = {"text": key} if len(key) == 1 and kind == "keyDown" else {"text": "\r"} if key == "Enter" else {}
      self.call("Input.dispatchKeyEvent", type=kind, key=key, **(text if kind == "keyDown" else {}))
    self.settle()

  def mouse(self, kind, x, y, **fields):
    self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **fields)
    self.settle()


@contextlib.contextmanager
def browsing(directory):
  """A fresh browser with one tab, ended afterwards."""
  command = next((found for name in NAMES if (found := shutil.which(name))), None)
  assert command, f"no browser: looked for {', '.join(NAMES)}; apt install chromium"
  process = subprocess.Popen(
    [command, *FLAGS, f"--user-data-dir={directory}", "about:blank"],
    stdout=subprocess.DEVNULL,
    stderr=subprocess.DEVNULL,
  )
  try:
    port_file, deadline = pathlib.Path(directory) / "DevToolsActivePort", time.monotonic() + 60
    while not (port_file.exists() and port_file.read_text().count("\n")):
      assert process.poll() is None and time.monotonic() < deadline, "the browser did not start"
      time.sleep(0.1)
    port = port_file.read_text().split()[0]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/json") as answer:
      tab = next(each for each in json.load(answer) if each["type"] == "page")
    socket = websocket.create_connection(tab["webSocketDebuggerUrl"], timeout=60)
    yield Page(socket)
    socket.close()
  finally:
    process.terminate()
    process.wait(timeout=30)
