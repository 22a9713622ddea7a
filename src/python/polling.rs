//! Protocols that wait for data and are looked after in the loop's rounds, before they arm a bell and let the loop sleep.
//!
//! A stream that waits looks by itself, see [`super::read`]. Protocols are handed their data, so the engine looks for all of
//! them at once: one callback in each round of the loop, as long as any of them waits so. A loop that is busy comes round
//! late, and its peers need not wake what does not sleep; so looking in vain is counted in rounds as well as in time.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;

use super::endpoint::Endpoint;
use super::gate::{calling, locked};

/// So many rounds in which nothing came to anybody are looked through at least. A loop without other work makes more of
/// them in the time that an endpoint looks.
const VAIN_ROUNDS_MIN: u32 = 16;
/// An endpoint to which nothing came in so many rounds arms, however much comes to others: by then the looks have cost what
/// a bell costs.
const ROUNDS_MAX: u32 = 64;

/// Who is looked after.
#[derive(Default)]
pub(super) struct Polling(Mutex<State>);

#[derive(Default)]
struct State {
    members: Vec<Member>,
    /// The loop will call [`Polling::round`].
    planned: bool,
    /// When something came last, and the rounds since.
    vain: Option<(Instant, u32)>,
}

struct Member {
    endpoint: Py<Endpoint>,
    /// How long it looks.
    spin: Duration,
    since: Instant,
    rounds: u32,
}

/// What a look has found.
pub(super) enum Look {
    /// Nothing yet.
    Nothing,
    /// Something to be handed over by this callback.
    Came(Py<PyAny>),
    /// The endpoint waits for nothing any more.
    Over,
}

impl Polling {
    /// Whether anybody is looked after.
    pub(super) fn is_on(&self, py: Python<'_>) -> bool {
        !locked(py, &self.0).members.is_empty()
    }

    /// Looks after `endpoint` from the loop's next round on, for `spin` at least; whether the round must be planned.
    pub(super) fn add(&self, py: Python<'_>, endpoint: Py<Endpoint>, spin: Duration) -> bool {
        let since = Instant::now();
        let mut state = locked(py, &self.0);
        if state.members.is_empty() {
            state.vain = Some((since, 0));
        }
        state.members.push(Member {
            endpoint,
            spin,
            since,
            rounds: 0,
        });
        !std::mem::replace(&mut state.planned, true)
    }

    /// One round: hands over what has come, and has those arm who have looked for long enough. `plan` plans the next one.
    ///
    /// # Errors
    /// The first one of what was called; all have had their turn by then.
    pub(super) fn round(
        &self,
        py: Python<'_>,
        plan: impl FnOnce() -> PyResult<()>,
    ) -> PyResult<()> {
        let Sorted { came, tired, over } = self.sort(py);
        let planned = if locked(py, &self.0).planned {
            plan()
        } else {
            Ok(())
        };
        drop(over);
        let armed: Vec<_> = tired
            .iter()
            .map(|endpoint| Endpoint::wake(endpoint.bind(py)))
            .collect();
        let called: Vec<_> = came
            .iter()
            .map(|callback| calling(py, || callback.call0(py)).map(drop))
            .collect();
        std::iter::once(planned)
            .chain(armed)
            .chain(called)
            .collect()
    }

    /// Looks at all of them; those that go on being looked after stay.
    fn sort(&self, py: Python<'_>) -> Sorted {
        let mut state = locked(py, &self.0);
        let members = std::mem::take(&mut state.members);
        let mut vain = state.vain;
        drop(state);
        let now = Instant::now();
        let mut sorted = Sorted::default();
        let mut kept = Vec::with_capacity(members.len());
        for mut member in members {
            match member.endpoint.get().look_in_passing(py) {
                Look::Came(callback) => {
                    vain = None;
                    sorted.came.push(callback);
                    sorted.over.push(member.endpoint);
                }
                Look::Over => sorted.over.push(member.endpoint),
                Look::Nothing => {
                    member.rounds += 1;
                    kept.push(member);
                }
            }
        }
        let (last, rounds) = vain.map_or((now, 0), |(last, rounds)| (last, rounds + 1));
        let (stay, tired): (Vec<_>, Vec<_>) = kept.into_iter().partition(|member| {
            let all = rounds >= VAIN_ROUNDS_MIN && now >= last + member.spin;
            let one = member.rounds >= ROUNDS_MAX && now >= member.since + member.spin;
            !(all || one)
        });
        for member in &tired {
            member.endpoint.get().looked_in_vain(py);
        }
        sorted
            .tired
            .extend(tired.into_iter().map(|member| member.endpoint));
        let mut state = locked(py, &self.0);
        state.vain = Some((last, rounds));
        state.members.extend(stay);
        state.planned = !state.members.is_empty();
        sorted
    }

    pub(super) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        if let Ok(state) = self.0.try_lock() {
            for member in &state.members {
                visit.call(&member.endpoint)?;
            }
        }
        Ok(())
    }

    pub(super) fn clear(&self) {
        // A lock that is taken here was taken by a thread that did not come along into this child.
        let old = self
            .0
            .try_lock()
            .ok()
            .map(|mut state| std::mem::take(&mut state.members));
        drop(old);
    }
}

#[derive(Default)]
struct Sorted {
    came: Vec<Py<PyAny>>,
    /// They arm now.
    tired: Vec<Py<Endpoint>>,
    over: Vec<Py<Endpoint>>,
}
