//! Promises about the registry of documents.

use bytes::Bytes;

use super::trial::Trial;
use crate::store::{Added, Collection, PAGE_MAX, SortOrder};

/// Names that a store could confuse: empty segments, zeros, characters that are
/// special in SQL and Redis, letters that differ in case, the last character of
/// Unicode. In their order.
const ODD: [&str; 12] = [
    "",
    "\0",
    "\0\0",
    "%",
    "' OR 1=1 --",
    "*",
    "A",
    "_",
    "a",
    "a\0",
    "é\n",
    "\u{10ffff}",
];

/// A prefix for names that no other promise uses.
fn own(trial: &Trial) -> String {
    format!("own-{:020}/", trial.draw())
}

fn text(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

async fn put(trial: &Trial, collection: Collection, name: &str, document: Bytes) {
    let put = trial.registry.put(collection, name, document).await;
    put.expect("the store takes a document");
}

async fn add(trial: &Trial, collection: Collection, name: &str, document: Bytes) -> Added {
    let added = trial.registry.add(collection, name, document).await;
    added.expect("the store answers an adding")
}

async fn read(trial: &Trial, collection: Collection, name: &str) -> Option<Bytes> {
    let document = trial.registry.read(collection, name).await;
    document.expect("the store gives a document")
}

async fn remove(trial: &Trial, collection: Collection, name: &str) {
    let removed = trial.registry.remove(collection, name).await;
    removed.expect("the store forgets a document");
}

/// All documents whose names begin with this prefix, page by page.
async fn all(
    trial: &Trial,
    collection: Collection,
    order: SortOrder,
    own: &str,
    limit: usize,
) -> Vec<(String, Bytes)> {
    let mut all = Vec::new();
    let mut after: Option<String> = None;
    loop {
        let page = trial
            .registry
            .documents(collection, order, after.as_deref(), limit)
            .await
            .expect("the store lists documents");
        assert!(page.len() <= limit, "a page longer than {limit}");
        let Some((last, _)) = page.last() else {
            return all;
        };
        after = Some(last.clone());
        all.extend(page.into_iter().filter(|(name, _)| name.starts_with(own)));
    }
}

/// Documents of any bytes, also empty and large ones, can have any name.
pub async fn documents_are_read_as_they_were_written(trial: &Trial) {
    let own = own(trial);
    let every: Bytes = (0..=255).collect::<Vec<u8>>().into();
    let large = Bytes::from(vec![7; 300_000]);
    for document in [Bytes::new(), every, large] {
        for odd in ODD {
            let name = format!("{own}{odd}");
            put(trial, Collection::ApiKeys, &name, document.clone()).await;
            assert!(read(trial, Collection::ApiKeys, &name).await == Some(document.clone()));
        }
    }
    assert_eq!(
        read(trial, Collection::ApiKeys, &format!("{own}absent")).await,
        None
    );
}

/// A put document replaces the earlier one of its name.
pub async fn putting_replaces(trial: &Trial) {
    let own = own(trial);
    for document in ["one", "two", "three"] {
        put(trial, Collection::Classes, &own, text(document)).await;
    }
    assert_eq!(
        read(trial, Collection::Classes, &own).await,
        Some(text("three"))
    );
    let listed = all(
        trial,
        Collection::Classes,
        SortOrder::Ascending,
        &own,
        PAGE_MAX,
    )
    .await;
    assert_eq!(listed, [(own, text("three"))]);
}

/// Adding never overwrites.
pub async fn adding_happens_once(trial: &Trial) {
    let own = own(trial);
    let add = async |document| add(trial, Collection::Audit, &own, text(document)).await;
    assert_eq!(add("one").await, Added::Done);
    assert_eq!(add("two").await, Added::Known);
    assert_eq!(
        read(trial, Collection::Audit, &own).await,
        Some(text("one"))
    );
    remove(trial, Collection::Audit, &own).await;
    assert_eq!(add("three").await, Added::Done);
    assert_eq!(
        read(trial, Collection::Audit, &own).await,
        Some(text("three"))
    );
}

/// Of many concurrent additions one succeeds, and its document is stored.
pub async fn adding_at_once_happens_once(trial: &Trial) {
    let own = own(trial);
    let adding = (0..64).map(|number| {
        let (trial, own) = (trial.clone(), own.clone());
        tokio::spawn(async move {
            let document = text(&number.to_string());
            let added = add(&trial, Collection::ApiKeys, &own, document.clone()).await;
            (added == Added::Done).then_some(document)
        })
    });
    let mut winners = Vec::new();
    for task in adding.collect::<Vec<_>>() {
        winners.extend(task.await.expect("the adding ends"));
    }
    assert_eq!(winners.len(), 1, "{winners:?}");
    assert_eq!(
        read(trial, Collection::ApiKeys, &own).await,
        winners.into_iter().next()
    );
}

/// Removing deletes the document of that name only. Removing an absent document
/// succeeds.
pub async fn removed_documents_are_absent(trial: &Trial) {
    let own = own(trial);
    let [one, other] = ["a", "a\0"].map(|name| format!("{own}{name}"));
    put(trial, Collection::ApiKeys, &one, text("one")).await;
    put(trial, Collection::ApiKeys, &other, text("other")).await;
    for _ in 0..2 {
        remove(trial, Collection::ApiKeys, &one).await;
        assert_eq!(read(trial, Collection::ApiKeys, &one).await, None);
    }
    let listed = all(
        trial,
        Collection::ApiKeys,
        SortOrder::Ascending,
        &own,
        PAGE_MAX,
    )
    .await;
    assert_eq!(listed, [(other, text("other"))]);
}

/// Documents are listed by the bytes of their names, rising or falling.
pub async fn documents_are_listed_in_the_order_of_their_names(trial: &Trial) {
    let own = own(trial);
    // Written in another order.
    for odd in ODD.iter().skip(5).chain(ODD.iter().take(5)) {
        put(trial, Collection::Audit, &format!("{own}{odd}"), text(odd)).await;
    }
    let mut want: Vec<_> = ODD
        .iter()
        .map(|odd| (format!("{own}{odd}"), text(odd)))
        .collect();
    let rising = all(
        trial,
        Collection::Audit,
        SortOrder::Ascending,
        &own,
        PAGE_MAX,
    )
    .await;
    assert_eq!(rising, want);
    want.reverse();
    let falling = all(
        trial,
        Collection::Audit,
        SortOrder::Descending,
        &own,
        PAGE_MAX,
    )
    .await;
    assert_eq!(falling, want);
}

/// Pages of any length return each document once. A page may begin after a name that
/// does not exist.
pub async fn documents_are_paged_both_ways(trial: &Trial) {
    let own = own(trial);
    let name = |number: usize| format!("{own}{number:03}");
    for number in 0..23 {
        let name = name(number);
        put(trial, Collection::Audit, &name, text(&name)).await;
    }
    let mut want: Vec<_> = (0..23).map(|n| (name(n), text(&name(n)))).collect();
    for order in [SortOrder::Ascending, SortOrder::Descending] {
        for limit in [1, 2, 11, 23, 24] {
            assert_eq!(
                all(trial, Collection::Audit, order, &own, limit).await,
                want,
                "{order:?} by {limit}"
            );
        }
        want.reverse();
    }
    let page = async |order, after: &str| {
        let page = trial
            .registry
            .documents(Collection::Audit, order, Some(after), 1)
            .await;
        let page = page.expect("the store lists documents");
        page.into_iter().next().map(|(name, _)| name)
    };
    let between = format!("{}x", name(7));
    assert_eq!(page(SortOrder::Ascending, &between).await, Some(name(8)));
    assert_eq!(page(SortOrder::Descending, &between).await, Some(name(7)));
    let none = trial
        .registry
        .documents(Collection::Audit, SortOrder::Ascending, None, 0)
        .await;
    assert_eq!(none.expect("the store lists documents"), []);
}

/// The same name in another collection is another document.
pub async fn collections_do_not_mix(trial: &Trial) {
    let own = own(trial);
    for collection in Collection::ALL {
        let document = text(collection.as_str());
        assert_eq!(add(trial, collection, &own, document).await, Added::Done);
    }
    for collection in Collection::ALL {
        let document = text(collection.as_str());
        assert_eq!(read(trial, collection, &own).await, Some(document.clone()));
        let listed = all(trial, collection, SortOrder::Descending, &own, PAGE_MAX).await;
        assert_eq!(listed, [(own.clone(), document)]);
    }
    remove(trial, Collection::ApiKeys, &own).await;
    assert_eq!(read(trial, Collection::ApiKeys, &own).await, None);
    assert!(read(trial, Collection::Audit, &own).await.is_some());
}
