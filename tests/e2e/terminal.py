"""A program on its own terminal, and the content of its screen."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time

import support

# The control sequences that our programs write: colours, cursor up, and erase from the cursor to the end.
CONTROL = re.compile(r'\033\[(\d*)([A-Za-z])')


class Screen:
    """Rows of `width` columns, including those that have scrolled away. Longer lines continue in the next row."""

    def __init__(self, width):
        self.width, self.rows, self.row, self.column = width, [''], 0, 0

    def write(self, text):
        while text:
            control = CONTROL.match(text)
            if control:
                self.obey(control[2], int(control[1] or 1))
                text = text[control.end():]
            else:
                self.put(text[0])
                text = text[1:]

    def obey(self, what, count):
        if what == 'A':
            self.row = max(0, self.row - count)
        elif what == 'J':
            self.rows = self.rows[:self.row] + [self.rows[self.row][:self.column]]
        else:
            assert what == 'm', what

    def put(self, character):
        if character == '\r':
            self.column = 0
        elif character == '\n':
            self.down()
        else:
            if self.column == self.width:
                self.down()
                self.column = 0
            row = self.rows[self.row].ljust(self.column)
            self.rows[self.row] = row[:self.column] + character + row[self.column + 1:]
            self.column += 1

    def down(self):
        self.row += 1
        if self.row == len(self.rows):
            self.rows.append('')

    def lines(self):
        return [row.rstrip() for row in self.rows if row.strip()]


class Terminal:
    """Runs `command`, a list, on a terminal of this size. Keeps its screen if the size does not change."""

    def __init__(self, command, cwd, width, height=24, env=None):
        self.said, self.code = '', None
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(cwd)
            os.environ.update(env or {}, TERM='xterm')
            self.fd = 0
            self.resize(width, height)
            os.execvp(command[0], command)
        self.width = width

    def resize(self, width, height=24):
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack('HHHH', height, width, 0, 0))

    def press(self, keys):
        os.write(self.fd, keys.encode())

    def look(self):
        """Reads the available output for at most a second. False: the program has closed the terminal."""
        ready, _, _ = select.select([self.fd], [], [], 1)
        try:
            piece = os.read(self.fd, 65536) if ready else None
        except OSError:
            return False
        if piece is not None:
            self.said += piece.decode(errors='replace')
        return piece != b''

    def read_until(self, condition, seconds=90):
        """Waits until condition() of the output is true. Returns all output so far."""
        deadline = time.monotonic() + seconds
        while not condition(self.said):
            if not self.look() or time.monotonic() > deadline:
                raise AssertionError(f'it does not come: {self.said[-3000:]}')
        return self.said

    def wait(self, seconds=90):
        """Waits for its end and returns the exit code."""
        deadline = time.monotonic() + seconds
        while self.look():
            if time.monotonic() > deadline:
                self.kill()
                raise AssertionError(f'it does not end: {self.said[-3000:]}')
        self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        os.close(self.fd)
        return self.code

    def kill(self):
        """Kills it in any state, at the end of a test."""
        if self.code is None:
            os.kill(self.pid, signal.SIGKILL)
            self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            os.close(self.fd)

    def screen(self):
        screen = Screen(self.width)
        screen.write(self.said)
        return screen


def capstan(args, **kwargs):
    return Terminal([support.CAPSTAN, *args], **kwargs)
