//! A proxy between the controller and the API server that watches, counts, delays, fails, cuts and kills.
//!
//! Plain HTTP towards the controller (a kubeconfig with an `http://` server), TLS towards the API server.
//! Watches are streamed through; every other answer is read whole before it is passed on, so that a
//! kill "after the write" is after the server has stored it and before the controller has heard of it.

mod call;
mod faults;
mod serve;
mod tally;

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard},
    time::{Duration, Instant},
};

use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use tokio::{net::TcpListener, sync::watch};

pub use self::{
    call::{Call, Class, Verb},
    faults::{Fault, Match, Moment, When},
    tally::{Record, Tally},
};
use self::{faults::Rule, serve::Upstream};

/// A running proxy; it stops when dropped.
pub struct FaultProxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    acceptor: tokio::task::JoinHandle<()>,
}

/// A place in the proxy's log, to ask later what came after it.
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    index: usize,
    /// When the mark was set.
    pub at: Instant,
}

struct Shared {
    upstream: Upstream,
    state: Mutex<State>,
    /// Grows when every open connection must be dropped at once.
    epoch: watch::Sender<u64>,
}

struct State {
    log: Vec<Record>,
    rules: Vec<Rule>,
    outage: bool,
    hanging: bool,
    kill: Option<KillPoint>,
    killed_at: Option<Call>,
    rng: StdRng,
}

struct KillPoint {
    pid: u32,
    left: u64,
    moment: Moment,
}

/// What to do with the request that has just arrived.
struct Plan {
    index: usize,
    delay: Duration,
    verdict: Verdict,
    kill: Option<(u32, Moment)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Pass,
    Status(u16),
    Cut,
    CutAnswer,
    OldList,
}

impl FaultProxy {
    /// Listens on a free loopback port and forwards to the server of an admin kubeconfig.
    pub async fn start(server: &str, ca_pem: &[u8], seed: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a loopback port for the fault proxy");
        let address = listener.local_addr().expect("the proxy's address");
        let state = State {
            log: Vec::new(),
            rules: Vec::new(),
            outage: false,
            hanging: false,
            kill: None,
            killed_at: None,
            rng: StdRng::seed_from_u64(seed),
        };
        let shared = Arc::new(Shared {
            upstream: Upstream::new(server, ca_pem),
            state: Mutex::new(state),
            epoch: watch::channel(0).0,
        });
        let acceptor = tokio::spawn(serve::accept(listener, shared.clone()));
        Self {
            address,
            shared,
            acceptor,
        }
    }

    /// The URL a kubeconfig names as its server.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Here and now in the log.
    pub fn mark(&self) -> Mark {
        Mark {
            index: self.shared.state().log.len(),
            at: Instant::now(),
        }
    }

    /// Everything that arrived after the mark.
    pub fn since(&self, mark: Mark) -> Tally {
        Tally::new(self.shared.state().log[mark.index..].to_vec())
    }

    /// Everything that ever arrived.
    pub fn all(&self) -> Tally {
        Tally::new(self.shared.state().log.clone())
    }

    /// Holds matching requests for this long.
    pub fn delay(&self, wanted: Match, by: Duration) {
        self.rule(wanted, When::Always, Fault::Delay(by));
    }

    /// Answers matching requests with an error of the API server.
    pub fn fail(&self, wanted: Match, when: When, code: u16) {
        self.rule(wanted, when, Fault::Status(code));
    }

    /// Closes the connection of matching requests before the server sees them.
    pub fn cut(&self, wanted: Match, when: When) {
        self.rule(wanted, when, Fault::Cut);
    }

    /// Closes the connection of matching requests after the server has done what they ask.
    pub fn cut_answer(&self, wanted: Match, when: When) {
        self.rule(wanted, when, Fault::CutAnswer);
    }

    /// Answers matching lists as a server that was restored from a backup.
    pub fn old_list(&self, wanted: Match) {
        self.rule(wanted, When::Always, Fault::OldList);
    }

    fn rule(&self, wanted: Match, when: When, fault: Fault) {
        self.shared.state().rules.push(Rule {
            wanted,
            when,
            fault,
            matched: 0,
        });
    }

    /// Takes every rule away and ends an outage.
    pub fn heal(&self) {
        let mut state = self.shared.state();
        state.rules.clear();
        state.outage = false;
        if std::mem::take(&mut state.hanging) {
            drop(state);
            self.shared.drop_connections();
        }
    }

    /// The API server is gone: open connections, watches included, are dropped and new ones refused.
    pub fn outage(&self, on: bool) {
        self.shared.state().outage = on;
        if on {
            self.shared.drop_connections();
        }
    }

    /// The API server is there and answers nothing: open connections, watches included, are dropped, and requests of new
    /// ones hang until this ends, when they are dropped too.
    pub fn hang(&self, on: bool) {
        self.shared.state().hanging = on;
        self.shared.drop_connections();
    }

    /// Holds matching requests for this long, when it is their turn.
    pub fn delay_some(&self, wanted: Match, when: When, by: Duration) {
        self.rule(wanted, when, Fault::Delay(by));
    }

    /// Drops every open connection once, as a restarting load balancer would.
    pub fn drop_connections(&self) {
        self.shared.drop_connections();
    }

    /// SIGKILL for this process at its n-th write from now, counted from 1.
    pub fn kill_at_write(&self, pid: u32, nth: u64, moment: Moment) {
        let mut state = self.shared.state();
        state.kill = Some(KillPoint { pid, left: nth, moment });
        state.killed_at = None;
    }

    /// The write at which the process was killed, once that has happened.
    pub fn killed_at(&self) -> Option<Call> {
        self.shared.state().killed_at.clone()
    }

    /// Forgets a kill point that was not reached.
    pub fn disarm(&self) {
        self.shared.state().kill = None;
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.acceptor.abort();
        self.shared.drop_connections();
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn drop_connections(&self) {
        self.epoch.send_modify(|epoch| *epoch += 1);
    }

    /// Logs the request and decides its fate.
    fn admit(&self, call: Call) -> Plan {
        let mut state = self.state();
        let index = state.log.len();
        state.log.push(Record::started(index, call.clone()));
        let kill = state.due(&call);
        let (delay, verdict) = state.judge(&call);
        Plan {
            index,
            delay,
            verdict,
            kill,
        }
    }

    fn answered(&self, index: usize, status: u16) {
        if let Some(record) = self.state().log.get_mut(index) {
            record.status = Some(status);
            record.finished = Some(Instant::now());
        }
    }

    /// Ends the process and everything it still has on the wire.
    fn kill(&self, pid: u32, call: &Call) {
        crate::support::process::kill(pid);
        self.state().killed_at = Some(call.clone());
        self.drop_connections();
    }
}

impl State {
    fn due(&mut self, call: &Call) -> Option<(u32, Moment)> {
        if call.class() != Class::Write {
            return None;
        }
        let point = self.kill.as_mut()?;
        point.left = point.left.saturating_sub(1);
        if point.left > 0 {
            return None;
        }
        self.kill.take().map(|point| (point.pid, point.moment))
    }

    fn judge(&mut self, call: &Call) -> (Duration, Verdict) {
        let mut delay = Duration::ZERO;
        for rule in &mut self.rules {
            if !rule.wanted.hits(call) {
                continue;
            }
            rule.matched += 1;
            if !rule.when.now(rule.matched, self.rng.random()) {
                continue;
            }
            match rule.fault {
                Fault::Delay(by) => delay += by,
                Fault::Status(code) => return (delay, Verdict::Status(code)),
                Fault::Cut => return (delay, Verdict::Cut),
                Fault::CutAnswer => return (delay, Verdict::CutAnswer),
                Fault::OldList => return (delay, Verdict::OldList),
            }
        }
        (delay, Verdict::Pass)
    }
}
