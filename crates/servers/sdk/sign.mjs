// Signs webhook requests as the providers do, by the providers' own code: what
// sign.py is for Python, with the same lines in and out. GitHub's and Shopify's
// SDKs are only here.

import { Buffer } from "node:buffer";
import { randomUUID } from "node:crypto";
import { parse as parseForm } from "node:querystring";
import { createInterface } from "node:readline";

class Request {
  constructor(ask) {
    this.secret = ask.secret;
    this.url = ask.url;
    this.body = Buffer.from(ask.body_b64, "base64");
    this.headers = ask.headers;
    this.timestamp = ask.timestamp ?? Math.floor(Date.now() / 1000);
    this.id = ask.id ?? randomUUID();
  }

  // As strict as Python: invalid UTF-8 would otherwise be replaced before signing.
  get text() {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(this.body);
  }

  get time() {
    return new Date(this.timestamp * 1000);
  }

  // A header that no signature covers, unless the asker has another.
  usual(name, value) {
    const names = Object.keys(this.headers).map((given) => given.toLowerCase());
    if (!names.includes(name.toLowerCase())) this.headers[name] = value;
  }
}

async function github(request) {
  const { sign } = await import("@octokit/webhooks-methods");
  request.headers["X-Hub-Signature-256"] = await sign(request.secret, request.text);
  request.usual("X-GitHub-Delivery", request.id);
  request.usual("X-GitHub-Event", "push");
}

async function shopify(request) {
  await shopifyFamily(request, "X-Shopify-");
  request.usual("X-Shopify-Event-Id", request.id);
  request.usual("X-Shopify-Webhook-Id", randomUUID());
}

async function shopifyEvents(request) {
  await shopifyFamily(request, "Shopify-");
  request.usual("Shopify-Event-Id", randomUUID());
  request.usual("Shopify-Webhook-Id", request.id);
}

async function shopifyFamily(request, prefix) {
  const { createSHA256HMAC } = await import("@shopify/shopify-api/runtime");
  request.headers[`${prefix}Hmac-Sha256`] = await createSHA256HMAC(request.secret, request.text);
  request.usual(`${prefix}Topic`, "orders/create");
  request.usual(`${prefix}Shop-Domain`, "example.myshopify.com");
  request.usual(`${prefix}API-Version`, "2026-07");
  request.usual(`${prefix}Triggered-At`, request.time.toISOString());
}

async function standardWebhooks(request) {
  const { Webhook } = await import("standardwebhooks");
  const signature = new Webhook(request.secret).sign(request.id, request.time, request.text);
  request.headers["webhook-id"] = request.id;
  request.headers["webhook-timestamp"] = String(request.timestamp);
  request.headers["webhook-signature"] = signature;
}

async function stripe(request) {
  const { default: Stripe } = await import("stripe");
  request.headers["Stripe-Signature"] = Stripe.webhooks.generateTestHeaderString({
    payload: request.text,
    secret: request.secret,
    timestamp: request.timestamp,
  });
}

async function svix(request) {
  const { Webhook } = await import("svix");
  const signature = new Webhook(request.secret).sign(request.id, request.time, request.text);
  request.headers["svix-id"] = request.id;
  request.headers["svix-timestamp"] = String(request.timestamp);
  request.headers["svix-signature"] = signature;
}

async function twilio(request) {
  const { getExpectedTwilioSignature } = await import("twilio/lib/webhooks/webhooks.js");
  const form = parseForm(request.text);
  const signature = getExpectedTwilioSignature(request.secret, request.url, form);
  request.headers["X-Twilio-Signature"] = signature;
  request.usual("I-Twilio-Idempotency-Token", request.id);
  request.usual("Content-Type", "application/x-www-form-urlencoded; charset=UTF-8");
}

async function twilioEvents(request) {
  const sdk = await import("twilio/lib/webhooks/webhooks.js");
  request.url += request.url.includes("?") ? "&" : "?";
  request.url += `bodySHA256=${sdk.getExpectedBodyHash(request.text)}`;
  const signature = sdk.getExpectedTwilioSignature(request.secret, request.url, {});
  request.headers["X-Twilio-Signature"] = signature;
}

// A scheme that is not the provider's usual one stands after a slash.
const SIGN = new Map([
  ["github", github],
  ["shopify", shopify],
  ["shopify/events", shopifyEvents],
  ["standard-webhooks", standardWebhooks],
  ["stripe", stripe],
  ["svix", svix],
  ["twilio", twilio],
  ["twilio-events", twilioEvents],
]);

async function sign(provider, request) {
  if (!SIGN.has(provider)) throw new Error(`no SDK here signs for ${provider}`);
  await SIGN.get(provider)(request);
  request.usual("Content-Type", "application/json; charset=utf-8");
  return {
    url: request.url,
    headers: request.headers,
    body_b64: request.body.toString("base64"),
  };
}

// Verifies a request with the receiver's SDK.
async function verify(provider, request) {
  if (provider !== "standard-webhooks") throw new Error(`no SDK here verifies for ${provider}`);
  const { Webhook, WebhookVerificationError } = await import("standardwebhooks");
  try {
    new Webhook(request.secret).verify(request.text, request.headers, { jsonParse: false });
  } catch (error) {
    if (!(error instanceof WebhookVerificationError)) throw error;
    return { ok: false, error: error.message };
  }
  return { ok: true };
}

for await (const line of createInterface({ input: process.stdin })) {
  let said;
  try {
    const ask = JSON.parse(line);
    const act = ask.verify ? verify : sign;
    said = await act(ask.provider, new Request(ask));
  } catch (error) {
    said = { error: String(error) };
  }
  process.stdout.write(`${JSON.stringify(said)}\n`);
}
