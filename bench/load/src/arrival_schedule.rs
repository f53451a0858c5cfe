//! Schedule of the publish calls. At a fixed rate all times are set in advance, and a call that had to wait for a
//! free connection still counts from its scheduled time, so a stalled sender cannot hide delayed calls.

use std::{error::Error, io, sync::Arc};

use tokio::{io::AsyncReadExt, net::unix::pipe, sync::Semaphore};

use crate::ledger::Ledger;

const SECOND: u64 = 1_000_000_000;

/// Decides when the next call may start.
pub(crate) enum ArrivalSchedule {
    /// Each connection calls again as soon as it has a response.
    ClosedLoop,
    /// Call number n is due at `start + n × interval` nanoseconds.
    OpenLoop { start: u64, interval: u64, turns: Semaphore },
}

impl ArrivalSchedule {
    /// Starts the schedule of `calls` calls. A fixed rate uses the kernel's timer directly, since tokio's timer
    /// has a resolution of one millisecond.
    pub(crate) fn start(
        rate: u32,
        batch: u32,
        calls: usize,
        connections: u32,
        ledger: &Ledger,
    ) -> Result<Arc<Self>, Box<dyn Error>> {
        if rate == 0 {
            return Ok(Arc::new(Self::ClosedLoop));
        }
        let interval = (SECOND * u64::from(batch) / u64::from(rate)).max(1);
        let mut timer = start_timer(interval)?;
        let schedule = Arc::new(Self::OpenLoop { start: ledger.now(), interval, turns: Semaphore::new(0) });
        let ticking = Arc::clone(&schedule);
        tokio::spawn(async move {
            if let Err(error) = ticking.tick(&mut timer, calls, connections).await {
                eprintln!("the timer failed: {error}");
                std::process::exit(1);
            }
        });
        Ok(schedule)
    }

    /// Waits until the next call may start.
    pub(crate) async fn wait_for_turn(&self) {
        if let Self::OpenLoop { turns, .. } = self
            && let Ok(turn) = turns.acquire().await
        {
            turn.forget();
        }
    }

    /// Returns the time from which the latency of call number `call` counts.
    pub(crate) fn due(&self, call: usize, ledger: &Ledger) -> u64 {
        match self {
            Self::ClosedLoop => ledger.now(),
            Self::OpenLoop { start, interval, .. } => start + interval * call as u64,
        }
    }

    async fn tick(&self, timer: &mut pipe::Receiver, calls: usize, connections: u32) -> io::Result<()> {
        let Self::OpenLoop { turns, .. } = self else { return Ok(()) };
        let mut left = calls;
        while left > 0 {
            let mut expired = [0; 8];
            timer.read_exact(&mut expired).await?;
            let due = usize::try_from(u64::from_ne_bytes(expired)).unwrap_or(left).min(left);
            turns.add_permits(due);
            left -= due;
        }
        // One more permit for each connection, so that all of them wake and find that no call is left.
        turns.add_permits(connections as usize);
        Ok(())
    }
}

/// Starts a timer that fires now and then every `interval` nanoseconds; reading it returns the number of times
/// it has fired since the last read. It is wrapped as a pipe for tokio, since it is read like one.
#[cfg(target_os = "linux")]
fn start_timer(interval: u64) -> Result<pipe::Receiver, Box<dyn Error>> {
    use rustix::time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
        timerfd_settime,
    };

    let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
    let every =
        Timespec { tv_sec: i64::try_from(interval / SECOND)?, tv_nsec: i64::try_from(interval % SECOND)? };
    let at_once = Timespec { tv_sec: 0, tv_nsec: 1 };
    timerfd_settime(
        &timer,
        TimerfdTimerFlags::empty(),
        &Itimerspec { it_interval: every, it_value: at_once },
    )?;
    Ok(pipe::Receiver::from_owned_fd_unchecked(timer)?)
}

/// Fallback without a readable kernel timer: a thread sleeps until each time and writes the count to a pipe.
#[cfg(not(target_os = "linux"))]
fn arm(interval: u64) -> Result<pipe::Receiver, Box<dyn Error>> {
    use std::{
        io::Write,
        os::fd::OwnedFd,
        thread,
        time::{Duration, Instant},
    };

    let (reader, mut writer) = io::pipe()?;
    thread::spawn(move || {
        let start = Instant::now();
        let mut fired = 0_u64;
        loop {
            let elapsed = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
            let due = elapsed / interval + 1;
            // Fails once the reader is dropped; nothing waits for this timer then.
            if due > fired && writer.write_all(&(due - fired).to_ne_bytes()).is_err() {
                return;
            }
            fired = due;
            thread::sleep(Duration::from_nanos((interval * fired).saturating_sub(elapsed)));
        }
    });
    Ok(pipe::Receiver::from_owned_fd(OwnedFd::from(reader))?)
}
