"""An SMTP server that prints each email as a line of JSON, and reads commands for its replies from stdin."""
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
# Reply to each recipient by address; "" is the default. An empty reply accepts the recipient.
replies = {"": ""}


def report(**fields):
    print(json.dumps(fields), flush=True)


def describe(message):
    """Returns the headers, parts, texts and defects of an email, as parsed by Python's standard library."""
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
        reply = replies.get(address) or replies[""]
        if reply == "hang":
            await asyncio.sleep(3600)
        if reply:
            return reply
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server, session, envelope):
        message = email.message_from_bytes(envelope.content, policy=email.policy.default)
        tls = kind == "tls" or session.ssl is not None
        report(email={"from": envelope.mail_from, "to": envelope.rcpt_tos, "tls": tls, **describe(message)})
        return "250 OK"


def authenticate(server, session, envelope, mechanism, data):
    matches = (data.login.decode(), data.password.decode()) == (user, password)
    return AuthResult(success=matches, handled=matches)


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


class ServerController(Controller):
    def factory(self):
        options = {"enable_SMTPUTF8": True}
        if user:
            options |= {"authenticator": authenticate, "auth_required": True, "auth_require_tls": kind == "starttls"}
        if kind == "starttls":
            options |= {"tls_context": context, "require_starttls": True}
        return Server(self.handler, **options)


def start(port):
    controller = ServerController(Handler(), hostname="127.0.0.1", port=port, ssl_context=context if kind == "tls" else None)
    controller.start()
    return controller, controller.server.sockets[0].getsockname()[1]


def free_port():
    import socket
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


controller, port = start(free_port())
report(port=port)
for line in sys.stdin:
    command, _, rest = line.rstrip("\n").partition(" ")
    if command == "reply":
        replies[""] = rest
    elif command == "to":
        address, _, reply = rest.partition(" ")
        replies[address] = reply
    elif command == "down":
        loop = controller.loop
        for transport in list(connections):
            loop.call_soon_threadsafe(transport.abort)
        controller.stop()
    elif command == "up":
        controller, port = start(port)
    report(done=command)
