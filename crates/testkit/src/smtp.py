"""A mail server that prints what it gets as lines of JSON, and fails as it is told on its standard input."""
import asyncio
import email
import email.policy
import json
import logging
import ssl
import sys
import warnings

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, AuthResult

warnings.simplefilter("ignore")
logging.disable(logging.CRITICAL)
kind, user, password = sys.argv[1:4]
answers = {"": ""}


def say(**what):
    print(json.dumps(what), flush=True)


def told(message):
    """What is to be known of a mail, as Python's own parser reads it."""
    parts = list(message.walk())
    defects = [str(defect) for part in parts for defect in part.defects]
    defects += [f"{name}: {d}" for name, value in message.items() for d in getattr(value, "defects", [])]
    body = lambda form: message.get_body((form,)) if message.is_multipart() else None
    text = lambda form: (found := body(form)) and found.get_content() or ""
    return {
        "headers": [[name, str(value)] for name, value in message.items()],
        "parts": [part.get_content_type() for part in parts],
        "text": text("plain"),
        "html": text("html"),
        "defects": defects,
    }


class Handler:
    async def handle_RCPT(self, server, session, envelope, address, options):
        answer = answers.get(address) or answers[""]
        if answer == "hang":
            await asyncio.sleep(3600)
        if answer:
            return answer
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server, session, envelope):
        message = email.message_from_bytes(envelope.content, policy=email.policy.default)
        tls = kind == "tls" or session.ssl is not None
        say(mail={"from": envelope.mail_from, "to": envelope.rcpt_tos, "tls": tls, **told(message)})
        return "250 kept"


def authenticate(server, session, envelope, mechanism, data):
    good = (data.login.decode(), data.password.decode()) == (user, password)
    return AuthResult(success=good, handled=good)


context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
context.load_cert_chain("cert.pem", "key.pem")
connections = set()


class Server(SMTP):
    def connection_made(self, transport):
        connections.add(transport)
        super().connection_made(transport)

    def connection_lost(self, error):
        connections.discard(self.transport)
        super().connection_lost(error)


class Front(Controller):
    def factory(self):
        options = {"enable_SMTPUTF8": True}
        if user:
            options |= {"authenticator": authenticate, "auth_required": True, "auth_require_tls": kind == "starttls"}
        if kind == "starttls":
            options |= {"tls_context": context, "require_starttls": True}
        return Server(self.handler, **options)


def begin(port):
    front = Front(Handler(), hostname="127.0.0.1", port=port, ssl_context=context if kind == "tls" else None)
    front.start()
    return front, front.server.sockets[0].getsockname()[1]


def free():
    import socket
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


front, port = begin(free())
say(port=port)
for line in sys.stdin:
    command, _, rest = line.rstrip("\n").partition(" ")
    if command == "answer":
        answers[""] = rest
    elif command == "to":
        address, _, answer = rest.partition(" ")
        answers[address] = answer
    elif command == "down":
        loop = front.loop
        for transport in list(connections):
            loop.call_soon_threadsafe(transport.abort)
        front.stop()
    elif command == "up":
        front, port = begin(port)
    say(done=command)
