//! Watches: many over few connections, healing by themselves, and telling no less than there is.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use stageset::cluster::watch::{Coverage, Hub, Knowledge, Owner, WatchKey, Woken, queue};
use stageset::cluster::{Cluster, Identity, Target, Tenant};

use crate::support::{World, look, objects};

/// Watches in the test of connections; a quarter of that fits on one connection.
const WATCHES: usize = 300;

async fn admin(world: &World) -> Arc<Cluster> {
    let kubeconfig =
        kube::config::Kubeconfig::read_from(world.cluster.plane.kubeconfig()).expect("the admin kubeconfig");
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &kube::config::KubeConfigOptions::default())
        .await
        .expect("a configuration");
    Cluster::connect(config).expect("a client")
}

/// The same through the world's proxy, which speaks HTTP/1.1 in clear text.
async fn through_proxy(world: &World) -> Arc<Cluster> {
    let path = world.kubeconfig_for("tenant").await;
    let kubeconfig = kube::config::Kubeconfig::read_from(path).expect("a kubeconfig");
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &kube::config::KubeConfigOptions::default())
        .await
        .expect("a configuration");
    Cluster::connect(config).expect("a client")
}

fn owner(namespace: &str) -> Owner {
    Owner {
        namespace: namespace.to_owned(),
        name: "set".to_owned(),
    }
}

fn map(namespace: &str, name: &str) -> Target {
    Target {
        api_version: "v1".into(),
        kind: "ConfigMap".into(),
        namespace: Some(namespace.to_owned()),
        name: name.to_owned(),
    }
}

fn labelled(target: &Target, value: &str) -> serde_json::Value {
    let namespace = target.namespace.clone().unwrap_or_default();
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": target.name, "namespace": namespace, "labels": {
            "stages.metio.wtf/name": "set", "stages.metio.wtf/namespace": namespace } },
        "data": { "value": value },
    })
}

/// One watch, its StageSet and the wakes it gets.
struct One {
    hub: Arc<Hub>,
    tenant: Tenant,
    key: WatchKey,
    owner: Owner,
    woken: Woken,
}

impl One {
    async fn begin(tenant: Tenant, key: WatchKey) -> Self {
        let (wake, woken) = queue();
        let namespace = key.namespace.clone().unwrap_or_default();
        let one = Self {
            hub: Hub::new(wake, 10),
            tenant,
            key,
            owner: owner(&namespace),
            woken,
        };
        one.until(&Coverage::Live).await;
        one
    }

    async fn coverage(&self) -> Coverage {
        let served = self.tenant.served("v1", "ConfigMap").await.expect("served");
        self.hub.watch(&self.key, &served, &self.tenant, &self.owner)
    }

    async fn until(&self, wanted: &Coverage) {
        let seen = look(Duration::from_secs(45), || async {
            let coverage = self.coverage().await;
            if std::mem::discriminant(&coverage) == std::mem::discriminant(wanted) {
                Ok(())
            } else {
                Err(format!("{coverage:?}"))
            }
        });
        seen.await.unwrap_or_else(|seen| panic!("not {wanted:?}: {seen}"));
    }

    async fn wake(&mut self, why: &str) {
        let woken = tokio::time::timeout(Duration::from_secs(10), self.woken.next()).await;
        assert_eq!(woken.ok().as_ref(), Some(&self.owner), "{why}");
    }

    fn forget_wakes(&mut self) {
        while self.woken.try_next().is_some() {}
    }
}

/// Connections of this process to a port.
fn connections(port: u16) -> usize {
    let mut inodes = BTreeSet::new();
    for entry in std::fs::read_dir("/proc/self/fd").expect("open files").flatten() {
        let link = std::fs::read_link(entry.path()).unwrap_or_default();
        if let Some(inode) = link
            .to_str()
            .and_then(|l| l.strip_prefix("socket:[")?.strip_suffix(']'))
        {
            inodes.insert(inode.to_owned());
        }
    }
    let table = std::fs::read_to_string("/proc/self/net/tcp").expect("the table of connections");
    let remote = format!(":{port:04X}");
    let lines = table.lines().skip(1).map(|l| l.split_whitespace().collect::<Vec<_>>());
    lines
        .filter(|f| f[2].ends_with(&remote) && f[3] == "01" && inodes.contains(f[9]))
        .count()
}

fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/statm").expect("the memory");
    let pages: usize = status
        .split_whitespace()
        .nth(1)
        .and_then(|p| p.parse().ok())
        .expect("a number");
    pages * 4096
}

/// Watches share connections. HTTP/1.1 would take one each.
///
/// Rules: decisions 5 shared
#[tokio::test(flavor = "multi_thread")]
async fn hundreds_of_watches_share_a_few_connections() {
    let world = World::builder("watches").without_controller().alone().start().await;
    let cluster = admin(&world).await;
    let port = world
        .cluster
        .server()
        .trim_end_matches('/')
        .rsplit_once(':')
        .and_then(|(_, p)| p.parse().ok())
        .expect("a port");
    let (wake, mut woken) = queue();
    let hub = Hub::new(wake, WATCHES / 3 * 4);
    let tenant = cluster.tenant(Identity::Controller);
    let served = tenant.served("v1", "ConfigMap").await.expect("served");
    let (before, memory) = (connections(port), resident_bytes());
    let keys: Vec<WatchKey> = (0..WATCHES)
        .map(|n| WatchKey::by_name("", tenant.identity(), &map(&world.namespace, &format!("m{n}")), true))
        .collect();
    let owner = owner(&world.namespace);
    let all_live = look(Duration::from_secs(60), || async {
        let live = keys
            .iter()
            .filter(|key| hub.watch(key, &served, &tenant, &owner) == Coverage::Live)
            .count();
        if live == WATCHES {
            Ok(())
        } else {
            Err(format!("{live} of {WATCHES}"))
        }
    });
    all_live.await.expect("every watch is live");
    // A watch is live once it is listed; give every stream the time to open.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let opened = connections(port).saturating_sub(before);
    let each = resident_bytes().saturating_sub(memory) / WATCHES;
    println!("{WATCHES} watches: {opened} connections, {each} bytes each");
    assert!(opened <= WATCHES / 50, "{opened} connections");
    assert!(each < 64 * 1024, "{each} bytes for each watch");
    while woken.try_next().is_some() {}
    let target = map(&world.namespace, "m250");
    world.cluster.apply(&labelled(&target, "1"), &world.namespace).await;
    let told = tokio::time::timeout(Duration::from_secs(5), woken.next()).await;
    assert_eq!(told.ok(), Some(owner.clone()), "the last connection tells, too");
    assert_eq!(
        hub.watch(
            &WatchKey::of("", tenant.identity(), &target, true),
            &served,
            &tenant,
            &owner
        ),
        Coverage::None,
        "the share of one namespace"
    );
    hub.keep_only(&owner, &Default::default());
    assert!(hub.is_empty());
}

/// Requests of many accounts go over a few connections: the identity is a header of each request.
///
/// Rules: run 11.4
#[tokio::test(flavor = "multi_thread")]
async fn many_accounts_share_the_connections() {
    let world = World::builder("pool").without_controller().alone().start().await;
    let cluster = admin(&world).await;
    let port = url::Url::parse(world.cluster.server())
        .ok()
        .and_then(|u| u.port_or_known_default())
        .expect("a port");
    let before = connections(port);
    let target = map(&world.namespace, "kube-root-ca.crt");
    for round in 0..3 {
        for account in 0..30 {
            let tenant = cluster.tenant(Identity::of(&world.namespace, Some(&format!("account-{account}"))));
            let refused = tenant
                .get(&target)
                .await
                .expect_err("no account of this name has rights");
            assert!(
                refused.to_string().contains(&format!(":account-{account}\"")),
                "{refused}"
            );
        }
        let opened = connections(port).saturating_sub(before);
        assert!(opened <= 4, "{opened} connections after round {round}");
    }
}

/// Rules: decisions 5 unchanged
#[tokio::test(flavor = "multi_thread")]
async fn changes_wake_and_what_is_unchanged_is_known() {
    let world = World::builder("watch-tells").without_controller().start().await;
    let cluster = admin(&world).await;
    let tenant = cluster.tenant(Identity::Controller);
    let target = map(&world.namespace, "a");
    let mut one = One::begin(tenant.clone(), WatchKey::of("", tenant.identity(), &target, true)).await;
    one.forget_wakes();
    let created = tenant.create(&labelled(&target, "1"), "it").await.expect("created");
    one.wake("created").await;
    let (uid, version) = (
        stageset::cluster::uid(&created).to_owned(),
        stageset::cluster::resource_version(&created).parse().expect("a number"),
    );
    assert_eq!(one.hub.knows(&one.key, "a", &uid, version), Knowledge::Unchanged);
    let changed = world
        .cluster
        .patch(
            &objects::configmaps(),
            &world.namespace,
            "a",
            json!({ "data": { "value": "2" } }),
        )
        .await;
    one.wake("changed").await;
    assert_eq!(one.hub.knows(&one.key, "a", &uid, version), Knowledge::Unknown);
    let version = stageset::cluster::resource_version(&changed).parse().expect("a number");
    assert_eq!(one.hub.knows(&one.key, "a", &uid, version), Knowledge::Unchanged);
    let unlabel = json!({ "metadata": { "labels": { "stages.metio.wtf/name": null } } });
    world
        .cluster
        .patch(&objects::configmaps(), &world.namespace, "a", unlabel)
        .await;
    one.wake("its label is gone").await;
    assert_eq!(one.hub.knows(&one.key, "a", &uid, version), Knowledge::Unknown);
}

/// An interruption costs trust, not news; and a watch whose server is back is trusted again although nothing happens.
#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_watch_resumes_and_tells_what_it_missed() {
    let world = World::builder("watch-heals").without_controller().start().await;
    let cluster = through_proxy(&world).await;
    let tenant = cluster.tenant(Identity::Controller);
    let target = map(&world.namespace, "a");
    world.cluster.apply(&labelled(&target, "1"), &world.namespace).await;
    let mut one = One::begin(tenant.clone(), WatchKey::of("", tenant.identity(), &target, true)).await;
    one.forget_wakes();
    world.proxy.outage(true);
    world.proxy.drop_connections();
    one.until(&Coverage::Starting).await;
    world.cluster.apply(&labelled(&target, "2"), &world.namespace).await;
    world.proxy.outage(false);
    one.wake("changed meanwhile").await;
    one.until(&Coverage::Live).await;
    one.forget_wakes();
    world.proxy.drop_connections();
    one.until(&Coverage::Live).await;
    world.cluster.apply(&labelled(&target, "3"), &world.namespace).await;
    one.wake("changed after the connection was cut").await;
}

/// A right that is missing is named, and its users learn when it is granted.
///
/// Rules: decisions 5 tenant
#[tokio::test(flavor = "multi_thread")]
async fn a_denied_watch_says_so_and_heals() {
    let world = World::builder("watch-denied").without_controller().start().await;
    let cluster = admin(&world).await;
    world
        .cluster
        .apply_yaml(
            "apiVersion: v1\nkind: ServiceAccount\nmetadata: { name: weak }\n",
            &world.namespace,
        )
        .await;
    let tenant = cluster.tenant(Identity::of(&world.namespace, Some("weak")));
    let target = map(&world.namespace, "a");
    let (wake, woken) = queue();
    let mut one = One {
        hub: Hub::new(wake, 10),
        key: WatchKey::of("", tenant.identity(), &target, true),
        owner: owner(&world.namespace),
        tenant,
        woken,
    };
    one.until(&Coverage::Denied(String::new())).await;
    let Coverage::Denied(why) = one.coverage().await else {
        panic!("not denied")
    };
    assert!(
        why.contains("cannot list resource \"configmaps\"") && why.contains(":weak\""),
        "{why}"
    );
    one.wake("denied").await;
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": { "name": "weak", "namespace": world.namespace },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view" },
        "subjects": [{ "kind": "ServiceAccount", "name": "weak", "namespace": world.namespace }],
    });
    world.cluster.apply(&binding, &world.namespace).await;
    one.until(&Coverage::Live).await;
    one.wake("granted").await;
}
