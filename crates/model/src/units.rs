//! Units as types, and the list and size syntax of the command line.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

macro_rules! unit {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
        #[serde(transparent)]
        pub struct $name(pub $inner);
    };
}

unit!(
    /// A span of time in nanoseconds.
    Ns(u64)
);
unit!(
    /// Ticks of the machine's constant-rate counter (TSC on x86-64, the generic timer on aarch64). They become [`Ns`] only
    /// through a measured rate.
    Cycles(u64)
);
unit!(
    /// A size or an offset in bytes.
    Bytes(u64)
);
unit!(
    /// The color of a page frame at one cache level, counted from 0.
    Color(u16)
);
unit!(
    /// A CPU, by Linux's number.
    CpuId(u32)
);
unit!(
    /// A page frame number: the physical address divided by the page size. Inside a virtual machine it is the guest's frame
    /// number.
    FrameNumber(u64)
);

/// Error for a text that is not a list, size or number in the accepted syntax.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// The text is not a list such as `0-3,8`.
    #[error("`{text}` is not a list\n  hint: write numbers and ranges separated by commas, such as 0-3,8")]
    List {
        /// The text that was given.
        text: String,
    },
    /// A member of the list does not exist here.
    #[error("{member} in `{text}` is out of range: there are {count}, numbered from 0\n  hint: the last is {}", count.saturating_sub(1))]
    OutOfRange {
        /// The text that was given.
        text: String,
        /// First member that is too large.
        member: u32,
        /// Number of members that exist.
        count: u32,
    },
    /// The text is not a time such as `45.3us`.
    #[error("`{text}` is not a time\n  hint: write a number with ns, us, ms or s, such as 45.3us or 60s")]
    Time {
        /// The text that was given.
        text: String,
    },
    /// The text is not a size such as `64K`.
    #[error("`{text}` is not a size\n  hint: write a number of bytes with K, M or G, such as 64K or 2M")]
    Size {
        /// The text that was given.
        text: String,
    },
}

/// Parses a cpulist such as `0-3,8`, and returns its members in ascending order without repetitions.
///
/// `count`: members must be smaller than this. The empty text is the empty list, as in sysfs.
pub fn parse_list(text: &str, count: u32) -> Result<Vec<u32>, ParseError> {
    let malformed = || ParseError::List { text: text.to_owned() };
    let mut members = BTreeSet::new();
    for part in text.trim().split(',').filter(|_| !text.trim().is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let first: u32 = first.trim().parse().map_err(|_| malformed())?;
        let last: u32 = last.trim().parse().map_err(|_| malformed())?;
        if first > last {
            return Err(malformed());
        }
        // Checked before the range is walked: `0-4000000000` must not take time.
        if last >= count {
            return Err(ParseError::OutOfRange { text: text.to_owned(), member: last.max(count), count });
        }
        members.extend(first..=last);
    }
    Ok(members.into_iter().collect())
}

/// Formats `members` (ascending) as the shortest cpulist, such as `0-3,8`.
pub fn format_list(members: &[u32]) -> String {
    let mut parts = Vec::new();
    for run in members.chunk_by(|a, b| a + 1 == *b) {
        match run {
            [one] => parts.push(one.to_string()),
            [first, .., last] => parts.push(format!("{first}-{last}")),
            [] => {}
        }
    }
    parts.join(",")
}

impl FromStr for Bytes {
    type Err = ParseError;

    /// Parses `4096`, `64K`, `2M` or `1G`: powers of 1024, with an optional `iB` or `B` after the letter.
    fn from_str(text: &str) -> Result<Self, ParseError> {
        let malformed = || ParseError::Size { text: text.to_owned() };
        let trimmed = text.trim();
        let digits = trimmed.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let shift = match trimmed[digits.len()..].to_ascii_lowercase().as_str() {
            "" | "b" => 0,
            "k" | "kb" | "kib" => 10,
            "m" | "mb" | "mib" => 20,
            "g" | "gb" | "gib" => 30,
            _ => return Err(malformed()),
        };
        let number: u64 = digits.trim().parse().map_err(|_| malformed())?;
        number.checked_mul(1 << shift).map(Bytes).ok_or_else(malformed)
    }
}

impl FromStr for Ns {
    type Err = ParseError;

    /// Parses `45.3us`, `10ms`, `60s` or `100ns`. The time must be a whole number of nanoseconds.
    fn from_str(text: &str) -> Result<Self, ParseError> {
        let malformed = || ParseError::Time { text: text.to_owned() };
        let trimmed = text.trim();
        let number = trimmed.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let digits = match &trimmed[number.len()..] {
            "ns" => 0,
            "us" => 3,
            "ms" => 6,
            "s" => 9,
            _ => return Err(malformed()),
        };
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        let all_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        let fraction = fraction.trim_end_matches('0');
        if whole.is_empty() || !all_digits(whole) || !all_digits(fraction) || fraction.len() > digits {
            return Err(malformed());
        }
        format!("{whole}{fraction:0<digits$}").parse().map(Ns).map_err(|_| malformed())
    }
}

impl fmt::Display for Bytes {
    /// Formats the size in the largest unit that divides it: `512 KiB`, `32 MiB`, `100 B`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (number, unit) = match self.0 {
            0 => (0, "B"),
            n if n % (1 << 30) == 0 => (n >> 30, "GiB"),
            n if n % (1 << 20) == 0 => (n >> 20, "MiB"),
            n if n % (1 << 10) == 0 => (n >> 10, "KiB"),
            n => (n, "B"),
        };
        write!(f, "{number} {unit}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lists_read_as_linux_writes_them() {
        assert_eq!(parse_list("0-3,8", 16).unwrap(), [0, 1, 2, 3, 8]);
        assert!(parse_list("", 16).unwrap().is_empty());
        assert_eq!(parse_list("5\n", 16).unwrap(), [5]);
        for bad in ["a", "3-1", "1,,2", "-1", "1-"] {
            assert!(matches!(parse_list(bad, 16), Err(ParseError::List { .. })), "{bad}");
        }
    }

    #[test]
    fn a_member_out_of_range_is_named_at_once() {
        let error = parse_list("2,0-4000000000", 16).unwrap_err();
        assert_eq!(error, ParseError::OutOfRange { text: "2,0-4000000000".into(), member: 4_000_000_000, count: 16 });
    }

    #[test]
    fn sizes_are_powers_of_1024() {
        assert_eq!("64K".parse(), Ok(Bytes(65536)));
        assert_eq!("2MiB".parse(), Ok(Bytes(2 << 20)));
        assert_eq!("17".parse(), Ok(Bytes(17)));
        for bad in ["", "K", "1.5M", "64X", "99999999999G"] {
            assert!(bad.parse::<Bytes>().is_err(), "{bad}");
        }
    }

    #[test]
    fn times_are_exact_in_nanoseconds() {
        assert_eq!("45.3us".parse(), Ok(Ns(45_300)));
        assert_eq!("60s".parse(), Ok(Ns(60_000_000_000)));
        assert_eq!("0.5ms".parse(), Ok(Ns(500_000)));
        assert_eq!("7ns".parse(), Ok(Ns(7)));
        for bad in ["", "5", "us", "-1us", "0.5ns", "1.2.3s", "99999999999999s", "1e3us"] {
            assert!(bad.parse::<Ns>().is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn a_formatted_list_reads_back(members in proptest::collection::btree_set(0u32..64, 0..20)) {
            let members: Vec<u32> = members.into_iter().collect();
            prop_assert_eq!(parse_list(&format_list(&members), 64).unwrap(), members);
        }
    }
}
