//! Numbers, times and dates as the report writes them, with no-break spaces inside. Numbers that are not finite are written as a
//! dash.

use crate::units::Cycles;

/// Text for a missing number.
pub const DASH: &str = "–";

/// Formats a whole number. From five digits on, narrow no-break spaces separate groups of three digits.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if digits.len() > 4 && i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    text
}

fn minus(number: f64) -> &'static str {
    if number < 0.0 { "−" } else { "" }
}

/// Formats a number with three significant digits, or with all digits of the whole part: `1.12`, `33.4`, `12 345`.
pub fn significant(number: f64) -> String {
    let minus = minus(number);
    match number.abs() {
        size if !size.is_finite() => DASH.to_owned(),
        size if size < 9.995 => format!("{minus}{size:.2}"),
        size if size < 99.95 => format!("{minus}{size:.1}"),
        size if size < 999.5 => format!("{minus}{size:.0}"),
        size if size < 1e18 => format!("{minus}{}", grouped(size.round() as u64)),
        size => format!("{minus}{size:.2e}"),
    }
}

/// Formats a number for an axis tick: a grouped whole number from 1000 on, otherwise at most six decimals without trailing
/// zeros.
pub fn tick(number: f64) -> String {
    match number.abs() {
        size if !size.is_finite() => DASH.to_owned(),
        size if size >= 1000.0 => format!("{}{}", minus(number), grouped(size.round() as u64)),
        // Ticks are multiples of a step computed in binary: 3 x 0.1 must read 0.3.
        size => format!("{}{}", minus(number), (size * 1e6).round() / 1e6),
    }
}

/// Formats a ratio by what it adds to one: 1.5 is `+50 %`. [Liedtke1997, §5.2]
pub fn overhead(ratio: f64) -> String {
    let percent = (ratio - 1.0) * 100.0;
    if !percent.is_finite() {
        return DASH.to_owned();
    }
    let sign = if percent < -0.05 { '−' } else { '+' };
    match percent.abs() {
        size if size < 9.95 => format!("{sign}{size:.1}\u{a0}%"),
        size if size < 1e15 => format!("{sign}{}\u{a0}%", grouped(size.round() as u64)),
        _ => DASH.to_owned(),
    }
}

/// Formats a share (0 to 1) as a percentage.
pub fn share(share: f64) -> String {
    let minus = minus(share);
    match share.abs() * 100.0 {
        percent if !percent.is_finite() => DASH.to_owned(),
        percent if percent > 0.0 && percent < 9.95 => format!("{minus}{percent:.1}\u{a0}%"),
        percent => format!("{minus}{percent:.0}\u{a0}%"),
    }
}

/// Formats a probability as `0.012`, or as `2.3 × 10⁻⁴` if it is below a thousandth.
pub fn probability(p: f64) -> String {
    if !p.is_finite() {
        return DASH.to_owned();
    }
    if p >= 0.000_995 || p <= 0.0 {
        return format!("{p:.3}");
    }
    let text = format!("{p:.1e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    format!("{mantissa}\u{a0}×\u{a0}10{}", superscript(exponent))
}

/// Formats a whole number in superscript digits.
fn superscript(number: &str) -> String {
    const DIGITS: [char; 10] = ['⁰', '¹', '²', '³', '⁴', '⁵', '⁶', '⁷', '⁸', '⁹'];
    number
        .chars()
        .filter_map(|c| match c {
            '-' => Some('⁻'),
            _ => c.to_digit(10).map(|digit| DIGITS[digit as usize]),
        })
        .collect()
}

/// Formats a power of ten for a probability axis: `1`, `10⁻²`.
pub fn power_of_ten(value: f64) -> String {
    match value.log10().round() as i32 {
        0 => "1".to_owned(),
        exponent => format!("10{}", superscript(&exponent.to_string())),
    }
}

/// Formats a time in ns in a suitable unit.
pub fn nanoseconds(ns: f64) -> String {
    match ns.abs() {
        size if !size.is_finite() => DASH.to_owned(),
        size if size < 999.5 => format!("{}\u{a0}ns", significant(ns)),
        size if size < 999_500.0 => format!("{}\u{a0}µs", significant(ns / 1e3)),
        size if size < 999.5e6 => format!("{}\u{a0}ms", significant(ns / 1e6)),
        _ => format!("{}\u{a0}s", significant(ns / 1e9)),
    }
}

/// Converts ticks of the constant-rate counter to time if the rate of the counter is known.
#[derive(Clone, Copy)]
pub struct Clock {
    ticks_per_us: Option<f64>,
}

impl Clock {
    /// Returns a clock of `counter_hz` ticks per second. `counter_hz` is `None` if the rate is unknown.
    pub fn of(counter_hz: Option<u64>) -> Clock {
        Clock { ticks_per_us: counter_hz.filter(|&hz| hz > 0).map(|hz| hz as f64 / 1e6) }
    }

    /// Returns the unit of [`Clock::number`]: `µs`, or `cycles` if the rate is unknown.
    pub fn unit(&self) -> &'static str {
        if self.ticks_per_us.is_some() { "µs" } else { "cycles" }
    }

    /// Returns the time of `cycles` in [`Clock::unit`].
    pub fn number(&self, cycles: Cycles) -> f64 {
        cycles.0 as f64 / self.ticks_per_us.unwrap_or(1.0)
    }

    /// Formats the time of `cycles` with its unit.
    pub fn text(&self, cycles: Cycles) -> String {
        match self.ticks_per_us {
            Some(_) => nanoseconds(self.number(cycles) * 1e3),
            None => format!("{}\u{a0}cycles", grouped(cycles.0)),
        }
    }
}

/// Formats seconds since 1970 as `2026-03-01 09:05 UTC`.
pub fn utc(unix_s: u64) -> String {
    let (days, second) = (unix_s / 86_400, unix_s % 86_400);
    // Years are counted from March so that the leap day is the last of its year; an era is 400 years.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02} UTC", second / 3600, second / 60 % 60)
}

/// Formats a p-value as `p = 0.031`, or as `p < 0.001`.
pub fn p_value(p: f64) -> String {
    if p < 0.001 { "p < 0.001".to_owned() } else { format!("p = {p:.3}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        // Known points of Unix time: the epoch, one billion, a leap day (2024-02-29 00:00 = 19 782 days), 2^31.
        assert_eq!(utc(0), "1970-01-01 00:00 UTC");
        assert_eq!(utc(1_000_000_000), "2001-09-09 01:46 UTC");
        assert_eq!(utc(19_782 * 86_400), "2024-02-29 00:00 UTC");
        assert_eq!(utc(1 << 31), "2038-01-19 03:14 UTC");
    }

    #[test]
    fn numbers_keep_three_digits_that_mean_something() {
        assert_eq!(significant(1.1249), "1.12");
        assert_eq!(significant(33.36), "33.4");
        assert_eq!(significant(1234.4), "1234");
        assert_eq!(significant(12_345.4), "12\u{202f}345");
        assert_eq!(overhead(1.5), "+50\u{a0}%");
        assert_eq!(overhead(1.034), "+3.4\u{a0}%");
        assert_eq!(overhead(0.9), "−10\u{a0}%");
        assert_eq!(overhead(1.0), "+0.0\u{a0}%");
        assert_eq!(nanoseconds(61_240.0), "61.2\u{a0}µs");
        assert_eq!(probability(0.01), "0.010");
        assert_eq!(probability(0.000_23), "2.3\u{a0}×\u{a0}10⁻⁴");
        assert_eq!(tick(3.0 * 0.1), "0.3");
    }

    #[test]
    fn negative_numbers_are_written_like_positive_ones_behind_a_minus() {
        for number in [0.034, 1.1249, 33.36, 150.5, 1234.4, 61_240.0, 2.5e9, 3e18] {
            for text in [significant, tick, share, nanoseconds] {
                assert_eq!(text(-number), format!("−{}", text(number)));
            }
        }
    }

    #[test]
    fn what_is_not_a_number_is_a_dash() {
        for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            for text in [significant(bad), overhead(bad), share(bad), probability(bad), nanoseconds(bad), tick(bad)] {
                assert_eq!(text, DASH);
            }
        }
    }
}
