#!/usr/bin/env python3
"""A sender of contract v3 (docs/reference/contract-v3.md) that needs the standard library only.

It reads one change of a ConfigMap in each line of its input, as "changed <namespace> <name>", and
stops at the end of the input. The settings are RW_ADDRESS, RW_MANAGER, RW_CA, RW_CERT and RW_KEY.
"""

import http.client
import json
import os
import random
import secrets
import ssl
import sys
import threading
import time
import urllib.parse

TYPES = "com.github.runtime-watcher."
MAX_BODY, MAX_ELEMENTS = 262144, 500
INTERVAL = float(os.environ.get("RW_INTERVAL", "1"))  # of heartbeats, in seconds
TIMEOUT, DRAIN = 10, 10  # of one request, and of the stop, in seconds
FIRST_WAIT, LONGEST_WAIT, REFUSED_WAIT, LONGEST_ASKED = 0.2, 20, 30, 300
POLL = 5  # seconds between two looks at the certificate while it is refused
GIVE_UP = 300  # seconds for which an event is refused for itself
RESENDS = [float(s) for s in os.environ.get("RW_RESENDS", "").split(",") if s]  # seconds after the first delivery
MAX_EVENTS = 10000


class Event:
    """An event that is not acknowledged. Those of one object are one, and the newest counts."""

    def __init__(self, key):
        self.key = key  # (namespace, name), or None: a resync
        self.sequence = self.revision = 0
        self.newer = False  # changed again since it was sent
        self.alone = False  # a batch with it was refused for good
        self.due = self.refused = self.refusals = 0
        self.resends, self.delivered = 0, None  # times that it was delivered, and the first one


class Sender:
    """Holds events until the control plane has them. One thread sends, so one request is in flight."""

    def __init__(self, environ):
        self.address, self.manager = environ["RW_ADDRESS"], environ["RW_MANAGER"]
        self.files = environ["RW_CA"], environ["RW_CERT"], environ["RW_KEY"]
        self.epoch, self.sequence, self.beats = secrets.token_hex(8), 0, 0
        self.lock = threading.Condition()
        self.events = {None: Event(None)}  # in their order; the first is a resync
        self.dropped = {}
        self.stopping = None  # the time at which to give up
        self.connection = self.stamp = self.source = None
        self.next_beat = self.paused = self.failures = 0
        self.unwelcome = False  # the last answer was 401 or 403

    # Events

    def change(self, key):
        with self.lock:
            event = self.events.get(key)
            if event and not event.resends:
                event.newer = True
            elif event:
                self.events[key] = Event(key)  # It replaces the resends.
            elif len(self.events) >= MAX_EVENTS:
                self.drop(None, "overflow")
            else:
                self.events[key] = Event(key)
            self.lock.notify()

    def drop(self, event, reason):
        """Gives an event up. A resync stands in."""
        self.dropped[reason] = self.dropped.get(reason, 0) + 1
        if event:
            del self.events[event.key]
        resync = self.events.get(None)
        if resync and not resync.resends:
            resync.newer = True
        else:
            self.events[None] = Event(None)

    def stop(self):
        with self.lock:
            self.stopping = time.monotonic() + DRAIN
            self.lock.notify()

    # Sending

    def run(self):
        while True:
            with self.lock:
                now = time.monotonic()
                if self.stopping and (not self.owed() or now >= self.stopping):
                    break
                if self.unwelcome and self.renewed():
                    self.unwelcome, self.paused = False, 0
                batch = self.due(now)
                if not batch and now < self.next_beat or now < self.paused:
                    self.lock.wait(self.rest(now))
                    continue
                batch, body = self.encode(batch, now)
            self.conclude(batch, *self.post(body))
        if not self.owed():
            self.post(b"[" + json.dumps(self.heartbeat(leaving=True)).encode() + b"]")

    def owed(self):
        """Returns the events that are not delivered. At the stop, resends are left out."""
        return [e for e in self.events.values() if not e.resends]

    def due(self, now):
        """Returns the events to send now. One that a receiver may refuse for good goes alone."""
        ready = [e for e in (self.owed() if self.stopping else self.events.values()) if e.due <= now]
        ready.sort(key=lambda e: e.sequence or float("inf"))
        alone = [e for e in ready if e.alone]
        return alone[:1] or ready[: MAX_ELEMENTS - 1]

    def rest(self, now):
        """Returns the seconds until something may be due."""
        ends = [self.next_beat] + [e.due for e in self.events.values()]
        end = max(min(ends), self.paused)
        if self.unwelcome:
            end = min(end, now + POLL)
        if self.stopping:
            end = min(end, self.stopping)
        return max(end - now, 0.001)

    def encode(self, batch, now):
        """Returns the events that fit into one body. The heartbeat stays behind with the others."""
        sent, parts, size = [], [], 2
        for event in batch:
            part = json.dumps(self.element(event)).encode()
            if size + len(part) + 2048 > MAX_BODY:
                break
            if not event.sequence:
                self.sequence += 1
                event.sequence = self.sequence
            sent.append(event)
            parts.append(part)
            size += len(part) + 1
        if len(sent) == len(batch) and now >= self.next_beat and not any(e.alone for e in sent):
            parts.append(json.dumps(self.heartbeat()).encode())
        return sent, b"[" + b",".join(parts) + b"]"

    def envelope(self, kind, id_):
        return {
            "specversion": "1.0", "type": TYPES + kind, "source": "/runtimes/" + self.identity(),
            "id": "%s-%s-%s" % (self.epoch, self.manager, id_), "epoch": self.epoch,
        }

    def element(self, event):
        if event.newer:
            event.newer, event.revision = False, event.revision + 1
        number = event.sequence or self.sequence + 1
        id_ = "%d-%d" % (number, event.revision) if event.revision else str(number)
        out = self.envelope("changed" if event.key else "resync", id_)
        out["sequence"] = "%020d" % number
        out["data"] = {}
        if event.key:
            out["data"] = {
                "watched": {"namespace": event.key[0], "name": event.key[1]},
                "watchedGvk": {"group": "", "version": "v1", "kind": "ConfigMap"},
            }
        return out

    def heartbeat(self, leaving=False):
        self.beats += 1
        self.next_beat = time.monotonic() + INTERVAL * random.uniform(0.9, 1)
        out = self.envelope("heartbeat", "heartbeat-%d" % self.beats)
        out["data"] = {
            "number": self.beats, "intervalMs": int(INTERVAL * 1000), "sequence": self.sequence,
            "pending": len(self.events), "dropped": self.dropped,
        }
        if leaving:
            out["data"]["leaving"] = True
        return out

    # Answers

    def conclude(self, batch, status, answer, wait, page):
        with self.lock:
            now = time.monotonic()
            self.unwelcome = status in (401, 403)
            failed = self.named(answer, len(batch) + 1) if status == 422 else None
            if status == 202 or failed is not None:
                self.failures = self.paused = 0
                for index, event in enumerate(batch):
                    if self.events.get(event.key) is not event:
                        continue  # A change replaced its resend.
                    if failed and index in failed:
                        self.refuse(event, failed[index], now)
                    elif event.newer:
                        self.events[event.key] = Event(event.key)
                    elif not self.resend(event, now):
                        del self.events[event.key]
            elif status in (400, 413, 415) and batch and not page:
                if len(batch) == 1 and batch[0].alone:
                    self.refuse(batch[0], {"status": status, "reason": answer.get("reason")}, now)
                for event in batch:
                    event.alone = True
            else:
                slow = status in (401, 403) or page and status == 400 or 200 <= status < 300
                self.pause(wait if wait is not None else REFUSED_WAIT if slow else 0, now)
                if slow and self.connection:
                    self.close()

    def resend(self, event, now):
        """Makes a delivered event wait for its next resend, if one is left: a new event with a new number."""
        if event.resends >= len(RESENDS):
            return False
        event.delivered = event.delivered or now
        event.due, event.resends = event.delivered + RESENDS[event.resends], event.resends + 1
        event.sequence = event.revision = 0
        return True

    @staticmethod
    def named(answer, elements):
        """Returns the refusals by index, and None if they are not those of the request."""
        try:
            failed = {int(f["index"]): f for f in answer["failed"]}
            return failed if failed and all(0 <= i < elements for i in failed) else None
        except (KeyError, TypeError, ValueError):
            return None

    def refuse(self, event, refusal, now):
        """Keeps an event apart that was refused for itself, or drops it."""
        event.refused = event.refused or now
        permanent = refusal.get("status") in (400, 413, 415)
        if event.key and (permanent or now - event.refused > GIVE_UP):
            self.drop(event, str(refusal.get("reason") or "other")[:64])
            return
        asked = refusal.get("retryAfter")
        asked = asked if isinstance(asked, (int, float)) else 0
        event.refusals += 1
        event.due = now + self.spread(asked, event.refusals)

    def pause(self, asked, now):
        self.failures += 1
        self.paused = now + self.spread(asked, self.failures)

    @staticmethod
    def spread(asked, failures):
        """Returns the wait after so many failures, with jitter."""
        if asked > 0:
            return min(asked, LONGEST_ASKED) * random.uniform(1, 1.25)
        return min(FIRST_WAIT * 2 ** min(failures - 1, 20), LONGEST_WAIT) * random.uniform(0.5, 1)

    # Transport

    def identity(self):
        """Returns the escaped Common Name of the certificate."""
        if not self.source:
            subject = ssl._ssl._test_decode_cert(self.files[1])["subject"]  # pylint: disable=protected-access
            name = next(value for part in subject for key, value in part if key == "commonName")
            self.source = urllib.parse.quote(name, safe="")
        return self.source

    def renewed(self):
        """Reports whether the files have changed since the last connection."""
        return self.stamp != tuple(os.stat(f).st_mtime_ns for f in self.files)

    def connect(self):
        """Reuses the connection unless the files have changed."""
        stamp = tuple(os.stat(f).st_mtime_ns for f in self.files)
        if self.connection and stamp == self.stamp:
            return self.connection
        self.close()
        context = ssl.create_default_context(cafile=self.files[0])
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_cert_chain(self.files[1], self.files[2])
        host, _, port = self.address.rpartition(":")
        self.connection = http.client.HTTPSConnection(host.strip("[]"), int(port), timeout=TIMEOUT, context=context)
        self.stamp, self.source = stamp, None
        return self.connection

    def close(self):
        if self.connection:
            self.connection.close()
            self.connection = None

    def post(self, body):
        """Returns the status (0: none), the JSON of the answer, Retry-After, and whether it is a page."""
        try:
            connection = self.connect()
            connection.request("POST", "/v3/%s/events" % self.manager, body,
                               {"Content-Type": "application/cloudevents-batch+json"})
            answer = connection.getresponse()
            text = answer.read(MAX_BODY + 1)
            if len(text) > MAX_BODY or answer.will_close:
                self.close()
            status = answer.status if answer.status != 202 or not text else 200  # A gateway wrote it.
            page = "html" in (answer.headers.get("Content-Type") or "")
            return status, self.parse(text), self.seconds(answer.headers.get("Retry-After")), page
        except (OSError, http.client.HTTPException, ValueError) as error:
            print("no answer:", error, file=sys.stderr)
            self.close()
            return 0, {}, None, False

    @staticmethod
    def parse(text):
        try:
            answer = json.loads(text)
            return answer if isinstance(answer, dict) else {}
        except (ValueError, RecursionError):
            return {}

    @staticmethod
    def seconds(value):
        return int(value) if value and value.strip().isdigit() else None


def main():
    sender = Sender(os.environ)
    thread = threading.Thread(target=sender.run)
    thread.start()
    for line in sys.stdin:
        word, namespace, name = line.split()
        if word == "changed":
            sender.change((namespace, name))
    sender.stop()
    thread.join()


if __name__ == "__main__":
    main()
