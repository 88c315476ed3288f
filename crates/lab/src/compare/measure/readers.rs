//! Readers of the output of load generators.

use regex_lite::Regex;

use super::super::Statistic;
use super::lines::numbers_in;

/// Format of the output of a load generator.
#[derive(Clone, Debug)]
pub enum Reader {
    /// Numbers by a pattern with one group; the statistic is computed over all of them.
    Numbers(Regex),
    /// redis-benchmark, from version 6.2 on.
    RedisBenchmark,
    /// pgbench.
    Pgbench,
    /// ab, of the Apache HTTP server.
    Ab,
    /// wrk, with `--latency` for quantiles.
    Wrk,
}

/// Result of reading an output.
#[derive(Clone, Debug, PartialEq)]
pub enum Found {
    /// All numbers, whose statistic is still to be computed.
    Numbers(Vec<f64>),
    /// The statistic as the load generator prints it.
    Statistic(f64),
}

impl Reader {
    /// Returns the reader for a load generator by the name of its program; `None` if there is none.
    fn of_program(name: &str) -> Option<Reader> {
        match name.rsplit('/').next()? {
            "redis-benchmark" | "valkey-benchmark" => Some(Reader::RedisBenchmark),
            "pgbench" => Some(Reader::Pgbench),
            "ab" => Some(Reader::Ab),
            "wrk" => Some(Reader::Wrk),
            _ => None,
        }
    }

    /// Returns the first program in `command` that is a load generator with a reader, and its reader; `None` if it names none. Programs in front of it, such
    /// as `taskset -c 0`, may start it.
    pub fn of_command(command: &str) -> Option<(&str, Reader)> {
        command.split_whitespace().find_map(|word| Some((word, Reader::of_program(word)?)))
    }

    /// Returns the unit of `statistic` as read; empty if it is not known.
    pub fn unit(&self, statistic: Statistic) -> &'static str {
        match (self, statistic) {
            (Reader::Numbers(_), _) => "",
            (_, Statistic::Throughput) => "1/s",
            _ => "ms",
        }
    }

    /// Returns the statistics that the load generator prints.
    pub fn statistics(&self) -> &'static [Statistic] {
        use Statistic::*;
        match self {
            Reader::Numbers(_) => &[Median, P99, P999, Mean],
            Reader::RedisBenchmark => &[Median, P99, P999, Mean, Throughput],
            Reader::Pgbench => &[Mean, Throughput],
            Reader::Ab | Reader::Wrk => &[Median, P99, Mean, Throughput],
        }
    }

    /// Returns the value of `statistic` in `text`; `None` if it is not there.
    pub fn read(&self, text: &str, statistic: Statistic) -> Option<Found> {
        let value = match self {
            Reader::Numbers(pattern) => {
                let numbers = numbers_in(text, pattern);
                return (!numbers.is_empty()).then_some(Found::Numbers(numbers));
            }
            Reader::RedisBenchmark => redis(text, statistic),
            Reader::Pgbench => match statistic {
                Statistic::Mean => behind(text, "latency average = "),
                Statistic::Throughput => behind(text, "tps = "),
                _ => None,
            },
            Reader::Ab => match statistic {
                Statistic::Throughput => behind(text, "Requests per second:"),
                Statistic::Mean => behind(text, "Time per request:"),
                Statistic::Median => row(text, "50%").and_then(number),
                Statistic::P99 => row(text, "99%").and_then(number),
                Statistic::P999 => None,
            },
            Reader::Wrk => match statistic {
                Statistic::Throughput => behind(text, "Requests/sec:"),
                Statistic::Mean => row(text, "Latency").and_then(milliseconds),
                Statistic::Median => row(text, "50%").and_then(milliseconds),
                Statistic::P99 => row(text, "99%").and_then(milliseconds),
                Statistic::P999 => None,
            },
        };
        value.filter(|value| value.is_finite() && *value > 0.0).map(Found::Statistic)
    }
}

/// Returns the number at the beginning of `text`.
fn number(text: &str) -> Option<f64> {
    let text = text.trim_start();
    let end = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    text[..end].parse().ok()
}

/// Returns the number behind the first `key`.
fn behind(text: &str, key: &str) -> Option<f64> {
    text.split_once(key).and_then(|(_, rest)| number(rest))
}

/// Returns what follows the first word of the first line that begins with the word `key`, if it begins with a digit.
fn row<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let rest = line.trim_start().strip_prefix(key)?;
        let value = rest.trim_start();
        (rest.starts_with(char::is_whitespace) && value.starts_with(|c: char| c.is_ascii_digit())).then_some(value)
    })
}

/// Returns a time such as `635.91us` in milliseconds.
fn milliseconds(text: &str) -> Option<f64> {
    let (value, word) = (number(text)?, text.split_whitespace().next()?);
    let scale = match word.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.') {
        "us" => 1e-3,
        "ms" => 1.0,
        "s" => 1e3,
        "m" => 60e3,
        _ => return None,
    };
    Some(value * scale)
}

/// Reads the summary of redis-benchmark: heads and values of a table below `latency summary`, and the distribution for what it lacks.
fn redis(text: &str, statistic: Statistic) -> Option<f64> {
    let column = match statistic {
        Statistic::Throughput => return behind(text, "throughput summary:"),
        Statistic::P999 => {
            let rows = text.lines().filter_map(|line| line.trim().split_once("% <= "));
            let mut rows = rows.filter_map(|(percent, rest)| Some((percent.parse::<f64>().ok()?, number(rest)?)));
            return rows.find(|(percent, _)| *percent >= 99.9).map(|(_, value)| value);
        }
        Statistic::Median => "p50",
        Statistic::P99 => "p99",
        Statistic::Mean => "avg",
    };
    let mut lines = text.split_once("latency summary (msec):")?.1.lines().filter(|line| !line.trim().is_empty());
    let at = lines.next()?.split_whitespace().position(|head| head == column)?;
    lines.next()?.split_whitespace().nth(at)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_generator_is_known_behind_what_starts_it() {
        let known = |command| Reader::of_command(command).map(|(program, reader)| (program, reader.statistics().len()));
        assert_eq!(known("redis-benchmark -q"), Some(("redis-benchmark", 5)));
        assert_eq!(known("taskset -c 0 /usr/bin/pgbench -S"), Some(("/usr/bin/pgbench", 2)));
        assert_eq!((known("cat file"), known("")), (None, None));
    }
    use Statistic::*;

    fn read(reader: &Reader, text: &str) -> Vec<Option<f64>> {
        let value = |statistic: Statistic| match reader.read(text, statistic)? {
            Found::Statistic(value) => Some(value),
            Found::Numbers(_) => None,
        };
        [Median, P99, P999, Mean, Throughput].map(value).to_vec()
    }

    #[test]
    fn the_summary_of_redis_benchmark_is_read() {
        // As version 7.0 prints it, shortened.
        let text = "====== GET ======\n  100000 requests completed in 1.06 seconds\n\nLatency by percentile distribution:\n\
                    0.000% <= 0.143 milliseconds (cumulative count 1)\n50.000% <= 0.271 milliseconds (cumulative count 51234)\n\
                    99.902% <= 0.991 milliseconds (cumulative count 99905)\n100.000% <= 1.583 milliseconds (cumulative count 100000)\n\n\
                    Summary:\n  throughput summary: 94339.62 requests per second\n  latency summary (msec):\n\
                    \x20         avg       min       p50       p95       p99       max\n        0.280     0.136     0.271     0.391     0.543     1.583\n";
        let expected = [0.271, 0.543, 0.991, 0.280, 94339.62].map(Some);
        assert_eq!(read(&Reader::RedisBenchmark, text), expected);
        assert_eq!(read(&Reader::RedisBenchmark, "Could not connect to Redis at 127.0.0.1:6379"), [None; 5]);
    }

    #[test]
    fn the_summary_of_pgbench_is_read() {
        // As version 15 prints it.
        let text = "number of failed transactions: 0 (0.000%)\nlatency average = 1.234 ms\nlatency stddev = 0.5 ms\n\
                    initial connection time = 3.3 ms\ntps = 810.5 (without initial connection time)\n";
        assert_eq!(read(&Reader::Pgbench, text), [None, None, None, Some(1.234), Some(810.5)]);
    }

    #[test]
    fn the_summary_of_ab_is_read() {
        // As version 2.3 prints it, shortened.
        let text = "Requests per second:    5261.57 [#/sec] (mean)\nTime per request:       1.901 [ms] (mean)\n\
                    Time per request:       0.190 [ms] (mean, across all concurrent requests)\n\
                    Percentage of the requests served within a certain time (ms)\n  50%      2\n  66%      2\n  99%      4\n 100%      6 (longest request)\n";
        assert_eq!(read(&Reader::Ab, text), [Some(2.0), Some(4.0), None, Some(1.901), Some(5261.57)]);
    }

    #[test]
    fn the_summary_of_wrk_is_read() {
        // As version 4.1 prints it with --latency.
        let text = "  Thread Stats   Avg      Stdev     Max   +/- Stdev\n    Latency   635.91us    0.89ms  12.92ms   93.69%\n\
                    \x20   Req/Sec    56.20k     8.07k   62.00k    86.54%\n  Latency Distribution\n     50%  250.00us\n     75%  491.00us\n\
                    \x20    90%  700.00us\n     99%    5.80ms\n  22464657 requests in 30.00s, 17.76GB read\nRequests/sec: 748868.53\n";
        let expected = [Some(0.25), Some(5.8), None, Some(0.63591), Some(748_868.53)];
        for (found, expected) in read(&Reader::Wrk, text).into_iter().zip(expected) {
            assert!(found == expected || (found.unwrap() - expected.unwrap()).abs() < 1e-9, "{found:?} {expected:?}");
        }
    }

    #[test]
    fn any_other_output_is_read_by_a_pattern() {
        let reader = Reader::Numbers(Regex::new("([0-9.]+) op/s").unwrap());
        let found = reader.read("12 op/s\n13.5 op/s\n", Mean);
        assert_eq!(found, Some(Found::Numbers(vec![12.0, 13.5])));
        assert_eq!(reader.read("nothing", Mean), None);
        assert!(Reader::of_program("/usr/bin/pgbench").is_some() && Reader::of_program("cat").is_none());
    }
}
