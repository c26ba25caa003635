"""Signs webhook requests as the providers do, by the providers' own code.

A line of standard input is a request to sign, or to verify, as JSON; a line of
standard output is the answer. What goes wrong is an answer too: {"error": …}. It
ends with its input, so it never outlives who asks.

Each SDK is imported when it is first asked for: a test mostly asks for one, and
all of them take more than a second.
"""

import base64
import hashlib
import hmac
import json
import sys
import time
import uuid
from datetime import datetime, timezone
from urllib.parse import parse_qs


class Request:
    def __init__(self, ask):
        self.secret = ask["secret"]
        self.url = ask["url"]
        self.body = base64.b64decode(ask["body_b64"])
        self.headers = ask["headers"]
        self.timestamp = int(time.time()) if ask["timestamp"] is None else ask["timestamp"]
        self.id = str(uuid.uuid4()) if ask["id"] is None else ask["id"]

    @property
    def text(self):
        return self.body.decode()

    @property
    def time(self):
        return datetime.fromtimestamp(self.timestamp, tz=timezone.utc)

    def usual(self, name, value):
        """A header that no signature covers, unless the asker has another."""
        if name.lower() not in map(str.lower, self.headers):
            self.headers[name] = value


class Form(dict):
    """The fields of a form, as web frameworks hand them to Twilio's validator."""

    def getlist(self, name):
        return self[name]


def adyen(request):
    from Adyen.util import generate_notification_sig, is_valid_hmac_notification

    notification = json.loads(request.body)
    for item in notification["notificationItems"]:
        item = item["NotificationRequestItem"]
        signature = generate_notification_sig(item, request.secret)
        item.setdefault("additionalData", {})["hmacSignature"] = signature.decode()
        confirm(is_valid_hmac_notification(item, request.secret))
    request.body = json.dumps(notification).encode()


def adyen_platform(request):
    from Adyen.util import generate_payload_sig

    signature = generate_payload_sig(request.body, request.secret)
    request.headers["HmacSignature"] = signature.decode()
    request.usual("Protocol", "HmacSHA256")


def slack(request):
    from slack_sdk.signature import SignatureVerifier

    timestamp = str(request.timestamp)
    verifier = SignatureVerifier(request.secret)
    signature = verifier.generate_signature(timestamp=timestamp, body=request.body)
    request.headers["X-Slack-Request-Timestamp"] = timestamp
    request.headers["X-Slack-Signature"] = signature


def square(request):
    # Square's SDK only verifies.
    from square.utils.webhooks_helper import verify_signature

    signed = request.url.encode() + request.body
    mac = hmac.new(request.secret.encode(), signed, hashlib.sha256)
    signature = base64.b64encode(mac.digest()).decode()
    confirm(
        verify_signature(
            request_body=request.text,
            signature_header=signature,
            signature_key=request.secret,
            notification_url=request.url,
        )
    )
    request.headers["x-square-hmacsha256-signature"] = signature


def standard_webhooks(request):
    from standardwebhooks import Webhook

    signature = Webhook(request.secret).sign(request.id, request.time, request.text)
    request.headers["webhook-id"] = request.id
    request.headers["webhook-timestamp"] = str(request.timestamp)
    request.headers["webhook-signature"] = signature


def stripe(request):
    from stripe import WebhookSignature

    request.headers["Stripe-Signature"] = WebhookSignature.generate_signature_header(
        request.text, request.secret, request.timestamp
    )


def svix(request):
    from svix.webhooks import Webhook

    signature = Webhook(request.secret).sign(request.id, request.time, request.text)
    request.headers["svix-id"] = request.id
    request.headers["svix-timestamp"] = str(request.timestamp)
    request.headers["svix-signature"] = signature


def twilio(request):
    from twilio import request_validator as sdk

    twilio_form(request, sdk, sdk.HMAC_SHA1)


def twilio_shared_key(request):
    from twilio import request_validator as sdk

    settings = f"key=webhooks_sharedkey_1,algorithm={sdk.HMAC_SHA256}"
    request.usual(sdk.SIGNATURE_SETTINGS_HEADER, settings)
    twilio_form(request, sdk, sdk.HMAC_SHA256)


def twilio_form(request, sdk, algorithm):
    form = Form(parse_qs(request.text, keep_blank_values=True))
    signature = sdk.RequestValidator(request.secret).compute_signature(request.url, form, algorithm)
    request.headers[sdk.SIGNATURE_HEADER] = signature
    request.usual("I-Twilio-Idempotency-Token", request.id)
    request.usual("Content-Type", "application/x-www-form-urlencoded; charset=UTF-8")


def twilio_events(request):
    from twilio import request_validator as sdk

    validator = sdk.RequestValidator(request.secret)
    request.url += "&" if "?" in request.url else "?"
    request.url += "bodySHA256=" + validator.compute_hash(request.text)
    request.headers[sdk.SIGNATURE_HEADER] = validator.compute_signature(request.url, {})


# A scheme that is not the provider's usual one stands after a slash.
SIGN = {
    "adyen": adyen,
    "adyen/platform": adyen_platform,
    "slack": slack,
    "square": square,
    "standard-webhooks": standard_webhooks,
    "stripe": stripe,
    "svix": svix,
    "twilio": twilio,
    "twilio/sha256": twilio_shared_key,
    "twilio-events": twilio_events,
}


def sign(provider, request):
    if provider not in SIGN:
        raise ValueError(f"no SDK here signs for {provider}")
    SIGN[provider](request)
    request.usual("Content-Type", "application/json; charset=utf-8")
    return {
        "url": request.url,
        "headers": request.headers,
        "body_b64": base64.b64encode(request.body).decode(),
    }


def verify(provider, request):
    """What the receiver's SDK says to a request that somebody else signed."""
    if provider != "standard-webhooks":
        raise ValueError(f"no SDK here verifies for {provider}")
    from standardwebhooks import Webhook, WebhookVerificationError

    try:
        Webhook(request.secret).verify(request.body, request.headers, json_parse=False)
    except WebhookVerificationError as error:
        return {"ok": False, "error": str(error)}
    return {"ok": True}


def confirm(accepted):
    if not accepted:
        raise ValueError("the SDK refuses what was signed for it")


for line in sys.stdin:
    try:
        ask = json.loads(line)
        act = verify if ask["verify"] else sign
        said = act(ask["provider"], Request(ask))
    except Exception as error:
        said = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(said), flush=True)
