//! The API without sockets: a router on the memory store, called with requests made
//! here.

mod auditing;
mod bulk;
mod describing;
mod doing;
mod roles;
mod sockets;
mod webhooks;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::{HeaderMap, Request};
use bytes::Bytes;
use http_body_util::BodyExt;
use onceward_core::caller::{Caller, Subject};
use onceward_core::class::{Class, OnUnknown, Terms};
use onceward_core::clock::{Clock, ManualClock, Timestamp};
use onceward_core::engine::{Engine, Limits};
use onceward_core::entropy::Entropy;
use onceward_core::fingerprint::{Algorithm, Fingerprint};
use onceward_core::identity::{Endpoint, Identity, KeySpace, OperationId};
use onceward_core::key::Key;
use onceward_core::memory::MemoryStore;
use onceward_core::record::{Answer, Attempt, Reply, Settlement};
use onceward_core::store::{
    Added, Claim, ClaimRequest, Collection, Grant, Queue, Registry, SortOrder, Store, StoreError,
};
use secrecy::SecretString;
use serde_json::Value;
use tower::ServiceExt;

use super::{Admin, Audit, FrozenSets, OperatorToken, Operators, Reload, StoreHealth, router};
use crate::callers::WallClock;
use crate::callers::api_keys::ApiKeyRegistry;
use crate::config::{Config, Role};
use crate::observe::metrics::Metrics;
use crate::runtime::classes::{Classes, ConfiguredClasses};
use crate::secrets::SecretReader;
use crate::secrets::gateway_key::GatewayKey;
use crate::webhooks::registry::WebhookRegistry;

/// A part of every token.
const CANARY: &str = "canary7e41";
const START: Timestamp = Timestamp::from_unix_ms(1_790_000_000_000);

/// An admin API, and its store.
struct Bench {
    router: Router,
    store: Arc<MemoryStore>,
    registry: Arc<Shaky>,
    classes: Arc<Classes>,
    webhooks: Arc<WebhookRegistry>,
    engine: Arc<Engine>,
    clock: Arc<ManualClock>,
    store_health: Arc<StoreHealth>,
    drawn: AtomicU64,
}

/// An admin API with a token of each role.
async fn bench() -> Bench {
    let role = |name: &str, role| OperatorToken {
        name: name.to_owned(),
        role,
        token: token(name).into(),
    };
    let operators = vec![
        role("viewer", Role::Read),
        role("ops", Role::Operate),
        role("root", Role::Admin),
    ];
    bench_with(operators, None).await
}

fn token(name: &str) -> String {
    format!("{CANARY}-{name}")
}

async fn bench_with(operators: Vec<OperatorToken>, reload: Option<Reload>) -> Bench {
    let clock = Arc::new(ManualClock::new(START));
    let store = Arc::new(MemoryStore::new(clock.clone()));
    let registry = Arc::new(Shaky {
        inner: store.clone(),
        broken: Mutex::default(),
    });
    let engine = Engine::new(store.clone(), Entropy::seeded(1), Limits::default());
    let base = [Class::interactive(), Class::webhook(), Class::financial()];
    let base = ConfiguredClasses {
        classes: base.map(|class| (class.name.clone(), class)).into(),
        longest: [("interactive".into(), Duration::from_secs(30))].into(),
    };
    let classes = Classes::open(registry.clone(), base).await;
    let classes = Arc::new(classes.expect("the store answers"));
    let wall = clock.clone();
    let secret = GatewayKey::new().expect("random bytes");
    let wall = WallClock::new(move || wall.now());
    let keys = ApiKeyRegistry::open(registry.clone(), secret.clone(), wall.clone());
    let keys = keys.await.expect("the store answers");
    let config = Config::unconfigured("http://127.0.0.1:1");
    let secrets = SecretReader::new(&config.secrets).expect("nothing to set up");
    let webhooks = WebhookRegistry::open(registry.clone(), &secret, &config, secrets, wall);
    let webhooks = Arc::new(webhooks.await.expect("the store answers"));
    let store_health = Arc::new(StoreHealth::new(clock.clone()));
    let admin = Admin {
        engine: engine.clone(),
        inspect: store.clone(),
        courier_wakeup: Arc::default(),
        metrics: Arc::new(Metrics::new()),
        draining: Arc::new(AtomicBool::new(false)),
        store_health: store_health.clone(),
        classes: classes.clone(),
        api_keys: Some(Arc::new(keys)),
        webhooks: webhooks.clone(),
        config: Arc::new(move || config.clone()),
        listen: "127.0.0.1:8080".parse().expect("an address"),
        operators: Arc::new(Operators::new(operators)),
        audit: Arc::new(Audit::new(
            registry.clone(),
            clock.clone(),
            Entropy::seeded(2),
        )),
        frozen_sets: FrozenSets::new(clock.clone(), Entropy::seeded(3)),
        reload,
        clock: clock.clone(),
        reply_limit: 1_000,
    };
    Bench {
        router: router(admin),
        store,
        registry,
        classes,
        webhooks,
        engine,
        clock,
        store_health,
        drawn: AtomicU64::new(0),
    }
}

/// A registry whose collections can be made to refuse writes.
struct Shaky {
    inner: Arc<MemoryStore>,
    broken: Mutex<Vec<Collection>>,
}

impl Shaky {
    fn break_collection(&self, collection: Collection) {
        self.broken.lock().expect("whole").push(collection);
    }

    fn mend(&self) {
        self.broken.lock().expect("whole").clear();
    }

    fn check(&self, collection: Collection) -> Result<(), StoreError> {
        match self.broken.lock().expect("whole").contains(&collection) {
            true => Err(StoreError::Unavailable("the disk is full".into())),
            false => Ok(()),
        }
    }
}

#[async_trait]
impl Registry for Shaky {
    async fn put(
        &self,
        collection: Collection,
        name: &str,
        document: Bytes,
    ) -> Result<(), StoreError> {
        self.check(collection)?;
        self.inner.put(collection, name, document).await
    }

    async fn add(
        &self,
        collection: Collection,
        name: &str,
        document: Bytes,
    ) -> Result<Added, StoreError> {
        self.check(collection)?;
        self.inner.add(collection, name, document).await
    }

    async fn read(&self, collection: Collection, name: &str) -> Result<Option<Bytes>, StoreError> {
        self.inner.read(collection, name).await
    }

    async fn remove(&self, collection: Collection, name: &str) -> Result<(), StoreError> {
        self.check(collection)?;
        self.inner.remove(collection, name).await
    }

    async fn documents(
        &self,
        collection: Collection,
        order: SortOrder,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(String, Bytes)>, StoreError> {
        self.inner.documents(collection, order, after, limit).await
    }
}

/// An answer, read whole.
struct Said {
    status: u16,
    headers: HeaderMap,
    body: Bytes,
}

impl Said {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("not JSON: {:?}", self.body))
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The code of a problem.
    fn code(&self) -> String {
        self.json()["code"].as_str().unwrap_or_default().to_owned()
    }

    fn detail(&self) -> String {
        self.json()["detail"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    }
}

impl Bench {
    async fn send(&self, mut request: Request<Body>) -> Said {
        let peer: SocketAddr = "203.0.113.9:4711".parse().expect("an address");
        request.extensions_mut().insert(ConnectInfo(peer));
        let answer = self.router.clone().oneshot(request).await;
        let (parts, body) = answer.expect("a router always answers").into_parts();
        Said {
            status: parts.status.as_u16(),
            headers: parts.headers,
            body: body.collect().await.expect("whole").to_bytes(),
        }
    }

    async fn get(&self, who: &str, path: &str) -> Said {
        let request = Request::get(path).header("authorization", format!("Bearer {}", token(who)));
        self.send(request.body(Body::empty()).expect("a request"))
            .await
    }

    async fn post(&self, who: &str, path: &str, body: &Value) -> Said {
        let request = Request::post(path)
            .header("authorization", format!("Bearer {}", token(who)))
            .header("content-type", "application/json")
            .body(Body::from(body.to_string()));
        self.send(request.expect("a request")).await
    }

    /// The entries of the audit, the latest first.
    async fn audit(&self) -> Vec<Value> {
        let page = self.get("viewer", "/admin/v1/audit?limit=200").await.json();
        page["entries"].as_array().expect("a list").clone()
    }

    /// Claims an operation of this tenant.
    async fn claim(&self, tenant: &str, key: &str) -> Grant {
        self.claim_under(tenant, key, Class::interactive().terms())
            .await
    }

    async fn claim_under(&self, tenant: &str, key: &str, terms: Terms) -> Grant {
        let ask = self.ask(tenant, key, terms);
        match self.store.claim(&ask).await.expect("the store answers") {
            Claim::Granted(grant) => grant,
            other => panic!("{other:?}"),
        }
    }

    fn ask(&self, tenant: &str, key: &str, terms: Terms) -> ClaimRequest {
        let subject = Subject::parse("user:1").expect("a subject");
        let identity = Identity {
            caller: Caller::trusted(tenant, "shop", subject).expect("a caller"),
            endpoint: Endpoint::new("payments.create"),
            key: Key::parse(key).expect("a key"),
            space: KeySpace::Endpoint,
        };
        let draw = self.drawn.fetch_add(1, Ordering::Relaxed) + 1;
        let digest = identity.digest();
        ClaimRequest {
            digest,
            identity,
            fingerprint: Fingerprint {
                algorithm: Algorithm::Json1,
                digest: [1; 32],
                sender: [7; 16],
            },
            terms,
            attempt: Attempt(u128::from(draw)),
            id: OperationId::new(&digest, draw),
        }
    }

    async fn settle(&self, grant: &Grant, settlement: Settlement) {
        let settled = self.store.settle(&grant.digest, grant.fence, settlement);
        settled.await.expect("the store answers");
    }

    async fn completed(&self, tenant: &str, key: &str) -> Grant {
        let grant = self.claim(tenant, key).await;
        let reply = Reply {
            status: 201,
            headers: vec![("content-type".into(), "text/plain".into())],
            body: "paid".into(),
            trailers: Vec::new(),
        };
        let answer = Answer::Kept(Arc::new(reply));
        self.settle(&grant, Settlement::Completed(answer)).await;
        grant
    }

    async fn unknown(&self, tenant: &str, key: &str) -> Grant {
        let grant = self.claim(tenant, key).await;
        self.settle(&grant, Settlement::Lost).await;
        grant
    }

    async fn paused(&self, tenant: &str, key: &str) -> Grant {
        let grant = self.claim(tenant, key).await;
        self.settle(&grant, Settlement::Paused).await;
        grant
    }

    /// A queued event whose delivery failed for good.
    async fn failed_event(&self, key: &str) -> OperationId {
        let ask = self.ask("acme", key, Class::webhook().terms());
        let enqueued = self.store.enqueue(&ask, "the event".into(), Duration::ZERO);
        enqueued.await.expect("the store answers");
        let due = self.store.due(1).await.expect("the store answers");
        let grant = &due.first().expect("it is due").grant;
        let reply = Reply {
            status: 422,
            headers: Vec::new(),
            body: "no".into(),
            trailers: Vec::new(),
        };
        let answer = Answer::Kept(Arc::new(reply));
        self.settle(grant, Settlement::Failed(answer)).await;
        grant.id
    }

    /// The state of an operation, as the API shows it.
    async fn state(&self, id: OperationId) -> String {
        let answer = self
            .get("viewer", &format!("/admin/v1/operations/{id}"))
            .await;
        match answer.status {
            404 => "absent".to_owned(),
            _ => answer.json()["state"].as_str().expect("a state").to_owned(),
        }
    }
}
