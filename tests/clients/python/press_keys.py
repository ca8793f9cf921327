"""Runs `divvy top` in a pseudoterminal, presses keys, and checks what it shows: press_keys.py DIVVY

The environment names the server. Exits with 0 if every screen is as expected and the terminal is restored.
"""

import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time

PATIENCE = 60


class Terminal:
    def __init__(self, program):
        self.descriptor, self.inside = pty.openpty()
        termios.tcsetwinsize(self.descriptor, (24, 100))
        self.modes = termios.tcgetattr(self.inside)
        ends = {"stdin": self.inside, "stdout": self.inside, "stderr": self.inside}
        self.process = subprocess.Popen([program, "top", "--interval", "1"], **ends)
        self.output = ""

    def expect(self, text):
        """Reads until the output contains the text, and forgets the output up to it."""
        deadline = time.monotonic() + PATIENCE
        while text not in self.output:
            assert time.monotonic() < deadline, (text, self.output)
            if select.select([self.descriptor], [], [], 1)[0]:
                self.output += os.read(self.descriptor, 65536).decode()
        self.output = self.output.partition(text)[2]

    def expect_end(self):
        """Waits for the end of the program, and checks that the terminal is restored."""
        self.expect("\x1b[?1049l")
        assert self.process.wait(PATIENCE) == 0
        after = termios.tcgetattr(self.inside)
        # The input speed may be given, and equal to the output speed, where it was left out before.
        after[2] &= ~(0o17 << 16)
        assert after == self.modes, (after, self.modes)

    def press(self, keys):
        os.write(self.descriptor, keys.encode())


terminal = Terminal(sys.argv[1])
terminal.expect("\x1b[?1049h")
terminal.expect("all rules: denied requests, last minute, 3 in all")
terminal.expect("calls: ann")
for keys, title in (
    ("o", "all rules: credits taken, last minute"),
    ("w", "all rules: credits taken, last hour"),
    ("n", "calls: credits taken, last hour"),
    ("n", "trial: credits taken, last hour"),
    ("o", "trial: requests that the canary would deny, last hour"),
    ("\x1b[C", "default: denied requests, last hour"),
    ("n", "all rules: denied requests, last hour"),
    ("p", "default: denied requests, last hour"),
    ("p", "trial: requests that the canary would deny, last hour"),
    ("x", "trial: requests that the canary would deny, last hour"),
):
    terminal.press(keys)
    terminal.expect(title)
# Control characters of an actor never reach the terminal.
terminal.press("p")
terminal.press("o")
terminal.expect("calls: credits taken")
terminal.expect("<img src=x>\\r\\n\\u{1b}[2J")
# A key without a meaning does not quit.
terminal.press("\x1b[6~\x1bOPo")
terminal.expect("calls: denied requests")
terminal.press("q")
terminal.expect_end()

# A signal leaves the terminal as it was, too.
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
    terminal = Terminal(sys.argv[1])
    terminal.expect("all rules: denied requests")
    terminal.process.send_signal(number)
    terminal.expect_end()
