//! Retention classes at run time: the configured classes, overridden by the
//! operators' changes.
//!
//! Requests read a class without a lock. A change is checked, stored, and only
//! then in force; it survives a restart and a new configuration. Existing
//! operations keep the terms under which they were claimed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use onceward_core::class::Class;
use onceward_core::deadline::store_within;
use onceward_core::store::{Collection, PAGE_MAX, Registry, SortOrder, StoreError};
use serde_json::{Map, Value};

use crate::config::{ClassSettings, build_class, find_short_lease};
use crate::runtime::cores::{Copies, CopyForCore};
use crate::runtime::plan::Plan;

/// The maximum number of classes that are changed or created at run time.
const CHANGED_MAX: usize = 500;
/// The maximum length of a class's name, in bytes.
const NAME_LENGTH_MAX: usize = 64;
/// The deadline of one store operation.
const STORE_DEADLINE: Duration = Duration::from_secs(2);

/// The classes in force.
pub(crate) struct Classes {
    registry: Arc<dyn Registry>,
    view: Copies<ClassView>,
    /// Held while a change is stored, so that concurrent changes do not overwrite
    /// each other.
    changing: tokio::sync::Mutex<()>,
}

/// The classes of the configuration.
#[derive(Clone, Debug, Default)]
pub(crate) struct ConfiguredClasses {
    /// The classes by name, built-in ones included.
    pub(crate) classes: BTreeMap<Arc<str>, Class>,
    /// The longest upstream timeout of the routes of each class. A class that no
    /// route uses is absent.
    pub(crate) longest: BTreeMap<Arc<str>, Duration>,
}

impl ConfiguredClasses {
    /// The classes of a plan.
    pub(crate) fn of(plan: &Plan) -> Self {
        Self {
            classes: plan.config.classes.clone(),
            longest: plan.longest_timeouts(),
        }
    }
}

struct ClassView {
    base: Arc<ConfiguredClasses>,
    /// The operators' changes, by class.
    changed: BTreeMap<Arc<str>, ClassSettings>,
    /// The classes in force.
    effective: BTreeMap<Arc<str>, Arc<Class>>,
    /// Changes that conflict with the configuration, and why. They are not in
    /// force.
    misfits: BTreeMap<Arc<str>, String>,
}

/// Why a class was not changed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClassError {
    /// The change is not valid.
    #[error("{0}")]
    Mistaken(String),
    /// There is no change to revert.
    #[error("the class {0} was not changed at run time")]
    Unchanged(String),
    /// The store did not confirm the change.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Where a setting of a class comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SettingSource {
    /// The default of the built-in class.
    BuiltIn,
    /// The configuration file.
    File,
    /// An operator's change at run time.
    Changed,
}

/// A class and the sources of its settings.
#[derive(Clone, Debug)]
pub(crate) struct ClassListing {
    pub(crate) class: Arc<Class>,
    /// By the names of [`ClassSettings`].
    pub(crate) sources: BTreeMap<String, SettingSource>,
    /// Why an operator's change is not in force.
    pub(crate) misfit: Option<String>,
}

impl Classes {
    /// The classes of this configuration with the stored changes. A change that
    /// conflicts with the configuration is logged and not in force: if the
    /// gateway did not start, the change could not be reverted.
    pub(crate) async fn open(
        registry: Arc<dyn Registry>,
        base: ConfiguredClasses,
    ) -> Result<Self, StoreError> {
        let changed = read(registry.as_ref()).await?;
        let view = ClassView::new(Arc::new(base), changed);
        view.log_misfits();
        Ok(Self {
            registry,
            view: Copies::new(&view),
            changing: tokio::sync::Mutex::new(()),
        })
    }

    /// The classes in force, by name.
    pub(crate) fn all(&self) -> BTreeMap<Arc<str>, Arc<Class>> {
        self.view.here().load().effective.clone()
    }

    /// A class by its name.
    pub(crate) fn get(&self, name: &str) -> Option<Arc<Class>> {
        self.view.here().load().effective.get(name).cloned()
    }

    /// All classes with the sources of their settings, by name.
    pub(crate) fn list(&self) -> Vec<ClassListing> {
        let view = self.view.here().load();
        view.effective
            .values()
            .map(|class| view.listed(class))
            .collect()
    }

    /// One class, as in [`list`](Self::list).
    pub(crate) fn show(&self, name: &str) -> Option<ClassListing> {
        let view = self.view.here().load();
        view.effective.get(name).map(|class| view.listed(class))
    }

    /// Reads the stored changes again, because other gateways may change them.
    /// On an error the classes in force do not change.
    pub(crate) async fn refresh(&self) -> Result<(), StoreError> {
        let _changing = self.changing.lock().await;
        self.read_again().await.map(drop)
    }

    /// Reads the stored changes and returns the classes in force. The caller
    /// must hold `changing`.
    async fn read_again(&self) -> Result<Arc<ClassView>, StoreError> {
        let before = self.view.here().load_full();
        let changed = read(self.registry.as_ref()).await?;
        if changed == before.changed {
            return Ok(before);
        }
        let view = ClassView::new(before.base.clone(), changed);
        tracing::info!("classes changed by another gateway");
        view.log_misfits();
        self.view.replace(&view);
        Ok(Arc::new(view))
    }

    /// Changes the given settings and keeps earlier changes of other settings. A
    /// new name creates a class.
    pub(crate) async fn set(
        &self,
        name: &str,
        raw: &ClassSettings,
    ) -> Result<Arc<Class>, ClassError> {
        check_name(name)?;
        let _changing = self.changing.lock().await;
        let before = self.read_again().await?;
        let known = before.changed.get(name);
        if known.is_none() && before.changed.len() >= CHANGED_MAX {
            return Err(ClassError::Mistaken(format!(
                "{CHANGED_MAX} classes are changed at run time already, which is the maximum; put this one into the configuration"
            )));
        }
        let raw = merged(known, raw);
        let class = apply_changes(name, &raw, &before.base).map_err(ClassError::Mistaken)?;
        let document = serde_json::to_vec(&raw).map_err(|error| damaged(name, error))?;
        let put = self
            .registry
            .put(Collection::Classes, name, document.into());
        store_within(STORE_DEADLINE, put).await?;
        let mut changed = before.changed.clone();
        changed.insert(name.into(), raw);
        self.view
            .replace(&ClassView::new(before.base.clone(), changed));
        Ok(Arc::new(class))
    }

    /// Reverts all changes of a class to the configuration. A class that was
    /// created at run time is removed, unless a route uses it.
    pub(crate) async fn unset(&self, name: &str) -> Result<(), ClassError> {
        let _changing = self.changing.lock().await;
        let before = self.read_again().await?;
        if !before.changed.contains_key(name) {
            return Err(ClassError::Unchanged(name.to_owned()));
        }
        let base = &before.base;
        if base.longest.contains_key(name) && !base.classes.contains_key(name) {
            return Err(ClassError::Mistaken(format!(
                "a route uses the class {name}, and the configuration does not have it"
            )));
        }
        store_within(
            STORE_DEADLINE,
            self.registry.remove(Collection::Classes, name),
        )
        .await?;
        let mut changed = before.changed.clone();
        changed.remove(name);
        self.view
            .replace(&ClassView::new(before.base.clone(), changed));
        Ok(())
    }

    /// The conflicts of a configuration with the operators' changes, one sentence
    /// for each.
    pub(crate) fn misfits(&self, base: &ConfiguredClasses) -> Vec<String> {
        let changed = self.view.here().load().changed.clone();
        let view = ClassView::new(Arc::new(base.clone()), changed);
        let misfits = view.misfits.iter();
        misfits
            .map(|(name, why)| format!("the class {name}, as it was changed at run time: {why}"))
            .collect()
    }

    /// Applies the operators' changes to a new configuration. A change that
    /// conflicts with it is not in force; [`misfits`](Self::misfits) reports these
    /// conflicts beforehand.
    pub(crate) async fn replace_base(&self, base: ConfiguredClasses) {
        let _changing = self.changing.lock().await;
        let changed = self.view.here().load().changed.clone();
        self.view.replace(&ClassView::new(Arc::new(base), changed));
    }
}

impl CopyForCore for ClassView {
    fn copy_for_core(&self) -> Self {
        let effective = self.effective.iter();
        let copy = |(name, class): (&Arc<str>, &Arc<Class>)| {
            let mut class = Class::clone(class);
            // Every record has it.
            class.name = (*class.name).into();
            (name.clone(), Arc::new(class))
        };
        Self {
            base: self.base.clone(),
            changed: self.changed.clone(),
            effective: effective.map(copy).collect(),
            misfits: self.misfits.clone(),
        }
    }
}

impl ClassView {
    fn new(base: Arc<ConfiguredClasses>, changed: BTreeMap<Arc<str>, ClassSettings>) -> Self {
        let mut effective: BTreeMap<_, _> = base
            .classes
            .iter()
            .map(|(name, class)| (name.clone(), Arc::new(class.clone())))
            .collect();
        let mut misfits = BTreeMap::new();
        for (name, raw) in &changed {
            match apply_changes(name, raw, &base) {
                Ok(class) => drop(effective.insert(name.clone(), Arc::new(class))),
                Err(why) => drop(misfits.insert(name.clone(), why)),
            }
        }
        Self {
            base,
            changed,
            effective,
            misfits,
        }
    }

    fn log_misfits(&self) {
        for (name, why) in &self.misfits {
            tracing::error!(class = &**name, %why, "class change conflicts with the configuration; change not in force");
        }
    }

    fn listed(&self, class: &Arc<Class>) -> ClassListing {
        let misfit = self.misfits.get(&class.name).cloned();
        let in_force = self.changed.get(&class.name).filter(|_| misfit.is_none());
        let said = in_force.map(settings).unwrap_or_default();
        let built_in = built_in(&class.name);
        let below = self.base.classes.get(&class.name).unwrap_or(&built_in);
        let [now, below, built_in] =
            [class.as_ref(), below, &built_in].map(|class| settings(&ClassSettings::of(class)));
        let source = |key: &String, value: &Value| {
            // An unchanged setting may depend on a changed one: the default of
            // `remember` is `retention`.
            if said.contains_key(key) || below.get(key) != Some(value) {
                SettingSource::Changed
            } else if built_in.get(key) == Some(value) {
                SettingSource::BuiltIn
            } else {
                SettingSource::File
            }
        };
        let sources = now
            .iter()
            .map(|(key, value)| (key.clone(), source(key, value)));
        ClassListing {
            class: class.clone(),
            sources: sources.collect(),
            misfit,
        }
    }
}

/// Applies an operator's changes to the configured class, if the result is valid
/// and fits the routes that use it.
fn apply_changes(
    name: &str,
    raw: &ClassSettings,
    base: &ConfiguredClasses,
) -> Result<Class, String> {
    let below = match base.classes.get(name) {
        Some(class) => class.clone(),
        None => built_in(name),
    };
    let built = build_class(name, raw, &below).and_then(|class| {
        let timeout = base.longest.get(&class.name).copied().unwrap_or_default();
        match find_short_lease(&class, timeout, "an upstream of its routes") {
            None => Ok(class),
            Some(mistake) => Err(vec![mistake]),
        }
    });
    built.map_err(|mistakes| {
        let sentences: Vec<_> = mistakes.iter().map(ToString::to_string).collect();
        sentences.join(". ")
    })
}

/// The defaults of a class of this name.
fn built_in(name: &str) -> Class {
    let known = [Class::webhook(), Class::financial()];
    let known = known.into_iter().find(|class| &*class.name == name);
    known.unwrap_or_else(|| Class::interactive().with(|class| class.name = name.into()))
}

fn check_name(name: &str) -> Result<(), ClassError> {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
    if (1..=NAME_LENGTH_MAX).contains(&name.len()) && name.bytes().all(good) {
        return Ok(());
    }
    Err(ClassError::Mistaken(format!(
        "the name of a class is 1 to {NAME_LENGTH_MAX} characters of A-Z a-z 0-9 _ - and ."
    )))
}

/// Merges new changes into earlier ones.
fn merged(before: Option<&ClassSettings>, now: &ClassSettings) -> ClassSettings {
    let mut all = before.map(settings).unwrap_or_default();
    all.extend(settings(now));
    // Both were serialised from valid settings, so the union is valid too.
    serde_json::from_value(Value::Object(all)).unwrap_or_else(|_| now.clone())
}

/// The settings that are present, by name.
fn settings(raw: &ClassSettings) -> Map<String, Value> {
    match serde_json::to_value(raw) {
        Ok(Value::Object(settings)) => settings,
        _ => Map::new(),
    }
}

async fn read(registry: &dyn Registry) -> Result<BTreeMap<Arc<str>, ClassSettings>, StoreError> {
    let documents = registry.documents(Collection::Classes, SortOrder::Ascending, None, PAGE_MAX);
    let mut changed = BTreeMap::new();
    for (name, document) in store_within(STORE_DEADLINE, documents).await? {
        let raw = serde_json::from_slice(&document).map_err(|error| damaged(&name, error))?;
        changed.insert(name.into(), raw);
    }
    Ok(changed)
}

fn damaged(name: &str, error: serde_json::Error) -> StoreError {
    tracing::error!(%error, class = name, "stored change of a class unreadable");
    StoreError::Damaged(Box::new(error))
}

#[cfg(test)]
mod tests {
    use onceward_core::class::OnError;
    use onceward_core::clock::SystemClock;
    use onceward_core::memory::MemoryStore;
    use rstest::rstest;

    use super::*;

    const DAY: Duration = Duration::from_secs(24 * 60 * 60);

    fn registry() -> Arc<dyn Registry> {
        Arc::new(MemoryStore::new(Arc::new(SystemClock::new())))
    }

    /// All routes have the class `interactive` and a timeout of 30 seconds.
    fn base() -> ConfiguredClasses {
        let classes = [Class::interactive(), Class::webhook(), Class::financial()];
        ConfiguredClasses {
            classes: classes.map(|class| (class.name.clone(), class)).into(),
            longest: [("interactive".into(), Duration::from_secs(30))].into(),
        }
    }

    async fn classes(registry: &Arc<dyn Registry>) -> Classes {
        let opened = Classes::open(registry.clone(), base()).await;
        opened.expect("the store answers")
    }

    fn raw(json: &str) -> ClassSettings {
        serde_json::from_str(json).expect("a class")
    }

    #[tokio::test]
    async fn a_change_adds_to_those_before_and_survives() {
        let registry = registry();
        let before = classes(&registry).await;
        for json in [r#"{"retention":"10d"}"#, r#"{"remember":"60d"}"#] {
            before.set("financial", &raw(json)).await.expect("right");
        }
        for classes in [before, classes(&registry).await] {
            let class = classes.get("financial").expect("it is there");
            assert_eq!((class.retention, class.remember), (10 * DAY, 60 * DAY));
            let listed = classes.show("financial").expect("it is there");
            assert_eq!(listed.sources["retention"], SettingSource::Changed);
            assert_eq!(listed.sources["lease"], SettingSource::BuiltIn);
        }
        let interactive = classes(&registry).await;
        interactive
            .set("interactive", &raw(r#"{"retention":"2h"}"#))
            .await
            .expect("right");
        let listed = interactive.show("interactive").expect("it is there");
        assert_eq!(listed.class.remember, DAY / 12);
        assert_eq!(
            listed.sources["remember"],
            SettingSource::Changed,
            "it follows"
        );
    }

    /// A document that was written before `on_error` existed.
    #[rstest]
    #[case::money("financial", OnError::Unknown)]
    #[case::other("interactive", OnError::Release)]
    #[tokio::test]
    async fn settings_that_a_stored_change_omits_are_those_of_the_class(
        #[case] name: &str,
        #[case] want: OnError,
    ) {
        let registry = registry();
        let document = r#"{"retention":"10d","on_unknown":"hold","on_exhausted":"pause"}"#;
        let put = registry
            .put(Collection::Classes, name, document.into())
            .await;
        put.expect("the store answers");
        let class = classes(&registry).await.get(name).expect("it is there");
        assert_eq!((class.retention, class.on_error), (10 * DAY, want));
    }

    #[tokio::test]
    async fn a_reverted_class_is_as_configured() {
        let registry = registry();
        let mut base = base();
        let mine = base.classes.get_mut("financial").expect("built in");
        mine.retention = 8 * DAY;
        let opened = Classes::open(registry, base).await;
        let classes = opened.expect("the store answers");
        classes
            .set("financial", &raw(r#"{"retention":"10d"}"#))
            .await
            .expect("right");
        classes.unset("financial").await.expect("it was changed");
        let listed = classes.show("financial").expect("it is there");
        assert_eq!(listed.class.retention, 8 * DAY);
        assert_eq!(listed.sources["retention"], SettingSource::File);
        let again = classes.unset("financial").await;
        assert!(matches!(again, Err(ClassError::Unchanged(_))));
    }

    #[tokio::test]
    async fn a_new_class_can_be_created_and_removed() {
        let registry = registry();
        let classes = classes(&registry).await;
        let built = classes.set("brief", &raw(r#"{"retention":"1h"}"#)).await;
        let built = built.expect("right");
        assert_eq!((&*built.name, built.remember), ("brief", DAY / 24));
        classes.unset("brief").await.expect("it was created");
        assert!(classes.get("brief").is_none());
    }

    #[tokio::test]
    async fn changes_by_another_gateway_take_effect_on_refresh() {
        let registry = registry();
        let (here, there) = (classes(&registry).await, classes(&registry).await);
        there
            .set("financial", &raw(r#"{"retention":"10d"}"#))
            .await
            .expect("right");
        assert_eq!(here.get("financial").expect("built in").retention, 7 * DAY);
        here.refresh().await.expect("the store answers");
        assert_eq!(here.get("financial").expect("built in").retention, 10 * DAY);
        there.unset("financial").await.expect("it was changed");
        here.refresh().await.expect("the store answers");
        assert_eq!(here.get("financial").expect("built in").retention, 7 * DAY);
    }

    #[tokio::test]
    async fn a_change_keeps_those_that_another_gateway_made_meanwhile() {
        let registry = registry();
        let (here, there) = (classes(&registry).await, classes(&registry).await);
        there
            .set("financial", &raw(r#"{"retention":"10d"}"#))
            .await
            .expect("right");
        here.set("financial", &raw(r#"{"remember":"60d"}"#))
            .await
            .expect("right");
        let class = here.get("financial").expect("built in");
        assert_eq!((class.retention, class.remember), (10 * DAY, 60 * DAY));
        here.unset("financial").await.expect("it was changed");
        let again = there.unset("financial").await;
        assert!(matches!(again, Err(ClassError::Unchanged(_))));
    }

    #[rstest]
    #[case::forgets_first(
        "interactive",
        r#"{"remember":"1h"}"#,
        "remember: 1h is shorter than the retention of 24h"
    )]
    #[case::no_time(
        "interactive",
        r#"{"retention":"soon"}"#,
        "retention: \"soon\" is not a number with a unit"
    )]
    #[case::lease(
        "interactive",
        r#"{"lease":"10s"}"#,
        "lease: 10s is shorter than the 30s"
    )]
    #[case::name(
        "a b",
        r#"{"retention":"1h"}"#,
        "the name of a class is 1 to 64 characters"
    )]
    #[case::unused_may_be_short("financial", r#"{"lease":"10s"}"#, "")]
    #[tokio::test]
    async fn invalid_changes_are_refused(
        #[case] name: &str,
        #[case] json: &str,
        #[case] words: &str,
    ) {
        let registry = registry();
        let classes = classes(&registry).await;
        let before = classes.get(name);
        let error = match classes.set(name, &raw(json)).await {
            Ok(_) => return assert_eq!(words, ""),
            Err(error) => error.to_string(),
        };
        assert!(!words.is_empty() && error.starts_with(words), "{error}");
        assert_eq!(classes.get(name), before);
        let kept = registry.read(Collection::Classes, name).await;
        assert_eq!(kept.expect("the store answers"), None);
    }

    #[tokio::test]
    async fn a_change_that_conflicts_with_a_new_configuration_is_reported_and_not_in_force() {
        let registry = registry();
        let classes = classes(&registry).await;
        classes
            .set("interactive", &raw(r#"{"lease":"40s"}"#))
            .await
            .expect("right");
        let mut slower = base();
        slower
            .longest
            .insert("interactive".into(), Duration::from_secs(50));
        let misfits = classes.misfits(&slower);
        assert_eq!(misfits.len(), 1);
        assert!(misfits[0].starts_with("the class interactive, as it was changed at run time: lease: 40s is shorter than the 50s"));
        classes.replace_base(slower).await;
        let listed = classes.show("interactive").expect("it is there");
        assert_eq!(listed.class.lease, Duration::from_secs(60));
        assert!(listed.misfit.is_some());
        classes.replace_base(base()).await;
        let class = classes.get("interactive").expect("it is there");
        assert_eq!(class.lease, Duration::from_secs(40));
    }
}
