//! Reads policies from TOML. Errors name the line.

use std::collections::BTreeMap;
use std::ops::Range;

use glob::Pattern;
use serde::Deserialize;
use toml::Spanned;

use super::{Class, Member, Policy, Share};
use crate::units::{Bytes, Ns, parse_list};

/// A policy that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// The text is not TOML, or has a field that does not exist or is of the wrong kind.
    #[error("line {line}: {problem}")]
    Syntax {
        /// Line of the error, counted from 1.
        line: usize,
        /// Description by the parser.
        problem: String,
    },
    /// A class is not usable.
    #[error("line {line}: class {class}: {problem}")]
    Class {
        /// Line at which the class begins, counted from 1.
        line: usize,
        /// Name of the class.
        class: String,
        /// Description of the mistake, and a hint.
        problem: String,
    },
    /// There is no class.
    #[error(
        "there is no class\n  hint: [class.control] with cache = \"128K\" and members = [ {{ unit = \"robot-*.service\" }} ]"
    )]
    Empty,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    reserve: Option<Spanned<String>>,
    #[serde(default)]
    class: BTreeMap<String, Spanned<ClassText>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ClassText {
    cache: Option<String>,
    colors: Option<ColorsText>,
    exclusive: Option<bool>,
    max_pause: Option<String>,
    #[serde(default)]
    members: Vec<MemberText>,
    #[serde(default)]
    clients: Vec<String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum ColorsText {
    Count(u32),
    List(String),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MemberText {
    unit: Option<String>,
    cgroup: Option<String>,
    exe: Option<String>,
    user: Option<String>,
    vm: Option<String>,
}

/// Reads a policy.
pub fn read(text: &str) -> Result<Policy, PolicyError> {
    let line = |at: usize| 1 + text.bytes().take(at).filter(|byte| *byte == b'\n').count();
    let file: File = toml::from_str(text).map_err(|error| PolicyError::Syntax {
        line: error.span().map_or(1, |span| line(span.start)),
        problem: error.message().to_owned(),
    })?;
    let mut classes: Vec<(Range<usize>, String, ClassText)> =
        file.class.into_iter().map(|(name, class)| (class.span(), name, class.into_inner())).collect();
    if classes.is_empty() {
        return Err(PolicyError::Empty);
    }
    classes.sort_by_key(|(span, ..)| span.start);
    let classes = classes.into_iter().map(|(span, name, class)| {
        class_of(name.clone(), class).map_err(|problem| PolicyError::Class {
            line: line(span.start),
            class: name,
            problem,
        })
    });
    let reserve = file.reserve.map(|size| {
        let problem = || format!("`reserve = {:?}` is not a size\n  hint: reserve = \"256M\"", size.get_ref());
        size.get_ref().parse().map_err(|_| PolicyError::Syntax { line: line(size.span().start), problem: problem() })
    });
    Ok(Policy { classes: classes.collect::<Result<_, _>>()?, reserve: reserve.transpose()? })
}

fn class_of(name: String, text: ClassText) -> Result<Class, String> {
    let share = match (text.cache, text.colors) {
        (Some(_), Some(_)) => return Err("has both `cache` and `colors`\n  hint: keep one of them".to_owned()),
        (None, None) => {
            return Err("has neither `cache` nor `colors`\n  hint: cache = \"128K\", cache = \"25%\", colors = 4, colors = \"0-3\" or cache = \"rest\"".to_owned());
        }
        (Some(cache), None) if cache == "rest" => Share::Rest,
        (Some(cache), None) => match (cache.strip_suffix('%').map(|percent| percent.trim_end().parse()), cache.parse())
        {
            (Some(Ok(percent @ 1..=100)), _) => Share::Percent(percent),
            (Some(_), _) => {
                return Err(format!("`cache = {cache:?}` is not a percentage from 1 to 100\n  hint: cache = \"25%\""));
            }
            (_, Ok(Bytes(0))) => return Err("`cache` is nothing\n  hint: cache = \"128K\"".to_owned()),
            (_, Ok(bytes)) => Share::Bytes(bytes),
            _ => {
                return Err(format!(
                    "`cache = {cache:?}` is not a size\n  hint: \"128K\", \"1M\", \"25%\" or \"rest\""
                ));
            }
        },
        (None, Some(ColorsText::Count(0))) => return Err("`colors` is nothing\n  hint: colors = 4".to_owned()),
        (None, Some(ColorsText::Count(count))) => Share::Count(count),
        (None, Some(ColorsText::List(list))) => match parse_list(&list, u32::from(u16::MAX)) {
            Ok(colors) if !colors.is_empty() => Share::List(colors),
            _ => return Err(format!("`colors = {list:?}` is not a list\n  hint: colors = 4, or colors = \"0-3\"")),
        },
    };
    let max_pause = match text.max_pause {
        None => None,
        Some(time) => match time.parse() {
            Ok(time) if time > Ns(0) => Some(time),
            _ => return Err(format!("`max_pause = {time:?}` is not a time\n  hint: max_pause = \"5ms\"")),
        },
    };
    if text.members.is_empty() && text.clients.is_empty() {
        return Err(
            "has neither members nor clients\n  hint: members = [ { unit = \"robot-*.service\" } ], or clients = [\"robot\"] for users who may ask"
                .to_owned(),
        );
    }
    let members = text.members.into_iter().map(member_of).collect::<Result<_, _>>()?;
    let exclusive = text.exclusive.unwrap_or(share != Share::Rest);
    if exclusive && share == Share::Rest {
        return Err(
            "cannot have the rest for itself\n  hint: leave `exclusive` out; what no class has for itself is the rest"
                .to_owned(),
        );
    }
    Ok(Class { name, share, exclusive, max_pause, members, clients: text.clients })
}

fn member_of(text: MemberText) -> Result<Member, String> {
    let pattern = |text: Option<String>| match text.as_deref().map(Pattern::new) {
        None => Ok(None),
        Some(Ok(pattern)) => Ok(Some(pattern)),
        Some(Err(error)) => Err(format!("`{}` is not a pattern: {}", text.unwrap_or_default(), error.msg)),
    };
    let member = Member {
        unit: pattern(text.unit)?,
        cgroup: pattern(text.cgroup)?,
        exe: pattern(text.exe)?,
        user: text.user,
        vm: pattern(text.vm)?,
    };
    if member == Member::default() {
        return Err("has a member without a pattern\n  hint: { unit = \"*\" } is every program".to_owned());
    }
    Ok(member)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_come_in_the_order_of_the_file() {
        let text = "[class.z]\ncolors = \"0-3\"\nmax_pause = \"5ms\"\nmembers = [{ exe = \"/bin/z\" }]\n\n[class.a]\ncache = \"rest\"\nmembers = [{ unit = \"*\" }]\n";
        let policy = read(text).unwrap();
        let names: Vec<&str> = policy.classes.iter().map(|class| class.name.as_str()).collect();
        assert_eq!(names, ["z", "a"]);
        let [z, a] = &policy.classes[..] else { panic!("{policy:?}") };
        assert_eq!((&z.share, z.exclusive, z.max_pause), (&Share::List(vec![0, 1, 2, 3]), true, Some(Ns(5_000_000))));
        assert_eq!((&a.share, a.exclusive, a.max_pause), (&Share::Rest, false, None));
        assert_eq!(z.members[0].to_string(), "exe = \"/bin/z\"");
    }

    #[test]
    fn an_error_names_line_class_and_what_to_write() {
        let members = "members = [{ unit = \"*\" }]\n";
        for (text, line, what) in [
            ("".to_owned(), "", "no class"),
            ("[class.a]\ncolors = 2\n".to_owned(), "line 1", "class a: has neither members nor clients"),
            (format!("\n[class.a]\n{members}"), "line 2", "neither"),
            (format!("[class.a]\ncolors = 2\ncache = \"1M\"\n{members}"), "line 1", "both"),
            (format!("[class.a]\ncache = \"lots\"\n{members}"), "line 1", "not a size"),
            (format!("[class.a]\ncache = \"0%\"\n{members}"), "line 1", "not a percentage"),
            (format!("[class.a]\ncache = \"101%\"\n{members}"), "line 1", "not a percentage"),
            (format!("[class.a]\ncolors = \"3-1\"\n{members}"), "line 1", "not a list"),
            (format!("[class.a]\ncolors = 0\n{members}"), "line 1", "nothing"),
            (format!("[class.a]\ncolors = 2\nmax_pause = \"soon\"\n{members}"), "line 1", "not a time"),
            (format!("[class.a]\ncache = \"rest\"\nexclusive = true\n{members}"), "line 1", "for itself"),
            ("[class.a]\ncolors = 2\nmembers = [{}]\n".to_owned(), "line 1", "without a pattern"),
            ("[class.a]\ncolors = 2\nmembers = [{ exe = \"[\" }]\n".to_owned(), "line 1", "not a pattern"),
            ("[class.a]\ncolours = 2\n".to_owned(), "line 2", "colours"),
            (format!("\nreserve = \"much\"\n[class.a]\ncolors = 2\n{members}"), "line 2", "reserve"),
            ("[class.a\n".to_owned(), "line 1", ""),
        ] {
            let error = read(&text).unwrap_err().to_string();
            assert!(error.contains(line) && error.contains(what), "{text:?}: {error}");
        }
    }
}
