//! The cost of a network stack per packet, and how much of it is due to the cache: the experiment of [Loeser1999, §3 and
//! 4].
//!
//! The stack has three components, each of which could be a server of its own: the driver, which moves frames to and from the card;
//! the server, which reserves, accounts and polices, and knows the protocols; and the client. Sending copies nothing in main memory;
//! receiving copies every byte twice.

use serde::{Deserialize, Serialize};

use crate::units::{Cycles, Ns};

/// A component of the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Component {
    /// The driver, which moves frames to and from the card.
    Driver,
    /// The server, which reserves, polices, and speaks the protocols.
    Server,
    /// The client, which sends and receives.
    Client,
}

impl Component {
    /// All components, in the order of their indices.
    pub const ALL: [Component; 3] = [Component::Driver, Component::Server, Component::Client];
}

/// Attributes the time of an operation to the components that it passes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meter {
    at: Component,
    since: Cycles,
    spent: [Cycles; 3],
}

impl Meter {
    /// Starts the meter at the time `now`, in the client.
    pub fn start(now: Cycles) -> Meter {
        Meter { at: Component::Client, since: now, spent: Default::default() }
    }

    /// Attributes the time from `now` on to `next`.
    #[inline]
    pub fn pass_to(&mut self, next: Component, now: Cycles) {
        self.spent[self.at as usize].0 += now.0.saturating_sub(self.since.0);
        (self.at, self.since) = (next, now);
    }

    /// Stops the meter, and returns the cycles that each component has spent until `now`.
    pub fn stop(mut self, now: Cycles) -> [Cycles; 3] {
        self.pass_to(Component::Client, now);
        self.spent
    }
}

/// Cost of a packet for the stack, on which reservations are based: a packet of `bytes` takes `packet + bytes x byte`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// Time of a packet without its contents, in ns.
    pub packet: Ns,
    /// Time of a byte, in picoseconds.
    pub byte_ps: u64,
}

impl Cost {
    /// Returns the time of a packet of `bytes`.
    pub fn of(self, bytes: usize) -> Ns {
        Ns(self.packet.0.saturating_add((bytes as u64).saturating_mul(self.byte_ps) / 1000))
    }
}

/// Reservation of a connection, for each direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// Packets per second.
    pub packets_per_s: u64,
    /// Size of the largest packet, in bytes.
    pub bytes_max: usize,
    /// Most packets that may come at once.
    pub burst: u64,
}

/// Reasons why a connection or a packet was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The reservation needs more CPU time than is left.
    #[error(
        "{asked_ppm} millionths of the CPU are requested and {left_ppm} are left\n  hint: fewer or smaller packets a second, or end another connection"
    )]
    Admission {
        /// Share of the CPU that the reservation needs, in millionths.
        asked_ppm: u64,
        /// Share of the CPU that is left, in millionths.
        left_ppm: u64,
    },
    /// The packet is larger than the reservation allows.
    #[error("a packet of {bytes} bytes, and {bytes_max} were reserved")]
    TooLarge {
        /// Size of the packet in bytes.
        bytes: usize,
        /// Largest size reserved, in bytes.
        bytes_max: usize,
    },
    /// The account of the connection has too little time left for the packet.
    #[error("a packet costs {cost_ns} ns and the account holds {left_ns}: faster than was reserved")]
    Account {
        /// Cost of the packet, in ns.
        cost_ns: u64,
        /// Time left in the account, in ns.
        left_ns: u64,
    },
}

/// Admission control: connections are admitted as long as the CPU time that they reserve fits.
#[derive(Clone, Debug)]
pub struct Admission {
    cost: Cost,
    limit_ppm: u64,
    reserved_ppm: u64,
}

impl Admission {
    /// Creates an admission control that reserves at most `limit_ppm` millionths of the CPU, for packets of this `cost`.
    pub fn new(cost: Cost, limit_ppm: u64) -> Admission {
        Admission { cost, limit_ppm, reserved_ppm: 0 }
    }

    /// Admits a connection, and returns its accounts for sending and receiving, both full at `now`. Fails if the time to
    /// reserve does not fit; then nothing is reserved.
    pub fn admit(&mut self, reservation: Reservation, now: Ns) -> Result<[TokenBucket; 2], Refused> {
        let cost = self.cost.of(reservation.bytes_max);
        // 1 ns per second is a thousandth of a millionth. Rounded up, because the reserved time must be available.
        let ppm = u128::from(reservation.packets_per_s) * u128::from(cost.0);
        let one_way = u64::try_from(ppm.div_ceil(1000)).unwrap_or(u64::MAX);
        let (asked_ppm, left_ppm) = (one_way.saturating_mul(2), self.limit_ppm - self.reserved_ppm);
        if asked_ppm > left_ppm {
            return Err(Refused::Admission { asked_ppm, left_ppm });
        }
        self.reserved_ppm += asked_ppm;
        let full = u128::from(cost.0) * u128::from(reservation.burst.max(1)) * PPM;
        let bucket = TokenBucket {
            cost: self.cost,
            bytes_max: reservation.bytes_max,
            rate_ppm: one_way,
            full,
            tokens: full,
            at: now,
        };
        Ok([bucket; 2])
    }
}

const PPM: u128 = 1_000_000;

/// The account of a connection, in CPU time. It fills at the reserved share of the CPU, up to a burst, and the cost of every
/// packet is taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenBucket {
    cost: Cost,
    bytes_max: usize,
    rate_ppm: u64,
    /// Capacity in millionths of ns of CPU time, a unit so small that rounding does not add up over many calls.
    full: u128,
    tokens: u128,
    at: Ns,
}

impl TokenBucket {
    /// Takes the cost of a packet of `bytes` out of the account at `now`. Fails if the packet is refused; then nothing is taken.
    #[inline]
    pub fn take(&mut self, bytes: usize, now: Ns) -> Result<(), Refused> {
        if bytes > self.bytes_max {
            return Err(Refused::TooLarge { bytes, bytes_max: self.bytes_max });
        }
        let elapsed = now.0.saturating_sub(self.at.0);
        self.tokens = self.full.min(self.tokens + u128::from(elapsed) * u128::from(self.rate_ppm));
        self.at = now;
        let cost = self.cost.of(bytes);
        match self.tokens.checked_sub(u128::from(cost.0) * PPM) {
            Some(left) => {
                self.tokens = left;
                Ok(())
            }
            None => Err(Refused::Account { cost_ns: cost.0, left_ns: (self.tokens / PPM) as u64 }),
        }
    }
}

/// Measurement of one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Time that each component spent on the packet, indexed by [`Component`].
    pub spent: [Cycles; 3],
}

impl Packet {
    /// Returns the time of all components together.
    pub fn total(&self) -> Cycles {
        Cycles(self.spent.iter().map(|spent| spent.0).sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COST: Cost = Cost { packet: Ns(1000), byte_ps: 500 };
    const RESERVATION: Reservation = Reservation { packets_per_s: 1000, bytes_max: 2000, burst: 2 };

    #[test]
    fn time_is_attributed_to_whom_it_passes_through_and_none_is_lost() {
        let mut meter = Meter::start(Cycles(100));
        meter.pass_to(Component::Server, Cycles(110));
        meter.pass_to(Component::Driver, Cycles(140));
        meter.pass_to(Component::Server, Cycles(200));
        meter.pass_to(Component::Client, Cycles(205));
        assert_eq!(meter.stop(Cycles(212)), [60, 35, 17].map(Cycles));
    }

    #[test]
    fn a_connection_is_admitted_while_the_time_it_reserves_fits() {
        // 1000 packets a second of 1000 + 2000 x 0.5 ns are 2 ms a second; both directions together are 4000 millionths.
        let mut admission = Admission::new(COST, 10_000);
        admission.admit(RESERVATION, Ns(0)).unwrap();
        admission.admit(RESERVATION, Ns(0)).unwrap();
        let refused = admission.admit(RESERVATION, Ns(0)).unwrap_err();
        assert_eq!(refused, Refused::Admission { asked_ppm: 4000, left_ppm: 2000 });
        admission.admit(Reservation { packets_per_s: 500, ..RESERVATION }, Ns(0)).unwrap();
        let endless = Reservation { packets_per_s: u64::MAX, bytes_max: usize::MAX, burst: 1 };
        assert!(matches!(admission.admit(endless, Ns(0)), Err(Refused::Admission { left_ppm: 0, .. })));
    }

    #[test]
    fn an_account_allows_a_burst_and_then_the_rate_reserved() {
        let [mut account, mut other] = Admission::new(COST, 1_000_000).admit(RESERVATION, Ns(0)).unwrap();
        // A burst of two packets of the largest size, 2000 ns each.
        assert_eq!([account.take(2000, Ns(0)), account.take(2000, Ns(0))], [Ok(()), Ok(())]);
        assert_eq!(account.take(2000, Ns(0)), Err(Refused::Account { cost_ns: 2000, left_ns: 0 }));
        // The account gains 2 ns per microsecond: after half a millisecond it has enough for an empty packet, after a whole one for
        // the largest.
        assert_eq!(account.take(2000, Ns(500_000)), Err(Refused::Account { cost_ns: 2000, left_ns: 1000 }));
        assert_eq!(account.take(0, Ns(500_000)), Ok(()));
        assert_eq!(account.take(2000, Ns(1_500_000)), Ok(()));
        assert_eq!(other.take(2001, Ns(0)), Err(Refused::TooLarge { bytes: 2001, bytes_max: 2000 }));
        // An account never holds more than the burst.
        let late = Ns(60_000_000_000);
        assert_eq!([other.take(2000, late), other.take(2000, late)], [Ok(()), Ok(())]);
        assert!(other.take(0, late).is_err());
    }

    #[test]
    fn asking_often_loses_nothing_to_rounding() {
        let reservation = Reservation { packets_per_s: 1, bytes_max: 0, burst: 1 };
        let [mut account, _] = Admission::new(COST, 1_000_000).admit(reservation, Ns(0)).unwrap();
        account.take(0, Ns(0)).unwrap();
        let taken = (1..=1_000_000u64).filter(|ms| account.take(0, Ns(ms * 1000)).is_ok()).count();
        // One packet per second is reserved, and one is requested every microsecond for one second.
        assert_eq!(taken, 1);
    }
}
