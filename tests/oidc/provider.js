// Runs the identity provider `oidc-provider` with a client, accounts in groups and a login form of its own. The first
// line of the output is its issuer. A line of the input is the redirect URI of the client, which starts the provider, or
// "rotate", which replaces its keys; each is answered with "done".
"use strict";

const crypto = require("node:crypto");
const http = require("node:http");
const path = require("node:path");
const readline = require("node:readline");
const { pathToFileURL } = require("node:url");

/** Groups and names of the accounts. */
const ACCOUNTS = {
  jane: { name: "Jane Doe", groups: ["staff", "platform"] },
  oscar: { name: "Oscar Ops", groups: ["support"] },
  vera: { name: "Vera View", groups: ["readers"] },
  eve: { name: "Eve Else", groups: ["sales"] },
};

const FORM = `<!doctype html><html lang="en"><meta charset="utf-8"><title>Example ID</title><link rel="icon" href="data:,">
<main><h1>Example ID</h1><form method="post"><label>Account <input name="account" autofocus></label> <button>Sign in</button></form></main></html>`;

// Notices of the provider must not mix with the lines of this script.
console.info = console.error;

let handle = (request, response) => response.writeHead(503).end();
let redirectUri;

/** Returns a new private key as a JWK. */
function newKey() {
  const { privateKey } = crypto.generateKeyPairSync("rsa", { modulusLength: 2048 });
  return { ...privateKey.export({ format: "jwk" }), kid: crypto.randomUUID(), use: "sig", alg: "RS256" };
}

/** Returns the body of a request. */
async function bodyOf(request) {
  const parts = [];
  for await (const part of request) parts.push(part);
  return Buffer.concat(parts).toString();
}

/** Replaces the provider by one with new keys. */
async function startProvider(issuer) {
  const { default: Provider } = await import(pathToFileURL(path.join(process.env.NODE_PATH, "oidc-provider/lib/index.js")));
  const provider = new Provider(issuer, {
    clients: [{
      client_id: "redrive",
      client_secret: "a-secret-of-the-tests-0123456789",
      redirect_uris: [redirectUri],
      grant_types: ["authorization_code"],
      response_types: ["code"],
    }],
    jwks: { keys: [newKey()] },
    cookies: { keys: ["a-key-of-the-tests"] },
    claims: { openid: ["sub"], profile: ["name"], groups: ["groups"] },
    pkce: { required: () => true },
    features: { devInteractions: { enabled: false } },
    interactions: { url: (_, interaction) => `/interaction/${interaction.uid}` },
    findAccount: (_, id) => ({ accountId: id, claims: () => ({ sub: id, ...ACCOUNTS[id] }) }),
    loadExistingGrant: async (context) => {
      const grant = new context.oidc.provider.Grant({ clientId: "redrive", accountId: context.oidc.session.accountId });
      grant.addOIDCScope("openid profile groups");
      await grant.save();
      return grant;
    },
  });
  const callback = provider.callback();
  handle = async (request, response) => {
    if (!request.url.startsWith("/interaction/")) return callback(request, response);
    if (request.method !== "POST") return response.writeHead(200, { "content-type": "text/html" }).end(FORM);
    const accountId = new URLSearchParams(await bodyOf(request)).get("account");
    if (!Object.hasOwn(ACCOUNTS, accountId)) return response.writeHead(200, { "content-type": "text/html" }).end(FORM);
    return provider.interactionFinished(request, response, { login: { accountId } });
  };
}

const server = http.createServer((request, response) => {
  Promise.resolve(handle(request, response)).catch((error) => {
    console.error(error);
    response.writeHead(500).end();
  });
});
server.listen(0, "127.0.0.1", () => {
  const issuer = `http://127.0.0.1:${server.address().port}`;
  process.stdout.write(`${issuer}\n`);
  readline.createInterface({ input: process.stdin }).on("line", async (line) => {
    if (line !== "rotate") redirectUri = line;
    await startProvider(issuer);
    process.stdout.write("done\n");
  }).on("close", () => process.exit(0));
});
