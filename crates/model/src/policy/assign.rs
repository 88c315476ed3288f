//! Gives colors to the classes of a policy.

use std::collections::BTreeSet;

use super::{Policy, Share};
use crate::units::{Bytes, format_list};

/// The colors of a class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assigned {
    /// Name of the class.
    pub class: String,
    /// Colors of the class, ascending.
    pub colors: Vec<u32>,
    /// Requested size of the cache, if it was rounded up.
    pub rounded_from: Option<Bytes>,
}

/// Why colors cannot be given to all classes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AssignError {
    /// The cache has fewer colors than a class lists.
    #[error("class {class}: color {color}, but there are {count}, from 0 to {}\n  hint: colors = 4 takes any four", count - 1)]
    NoSuchColor {
        /// Name of the class.
        class: String,
        /// The color.
        color: u32,
        /// Number of colors.
        count: u32,
    },
    /// Two classes list the same colors, and one has them for itself.
    #[error("classes {one} and {other} both list the colors {colors}\n  hint: exclusive = false in both shares them")]
    Overlap {
        /// Name of the first class.
        one: String,
        /// Name of the second class.
        other: String,
        /// The colors in common, as a list.
        colors: String,
    },
    /// The classes want more colors than there are.
    #[error(
        "there are {count} colors of {per_color}, and the classes want more: {wanted}\n  hint: give some of them less"
    )]
    TooMany {
        /// Number of colors.
        count: u32,
        /// Cache of one color.
        per_color: Bytes,
        /// Requests of all classes, in words.
        wanted: String,
    },
    /// Nothing is left for a class that has the rest.
    #[error("nothing is left for class {class}: {wanted}\n  hint: give the others less")]
    NothingLeft {
        /// Name of the class.
        class: String,
        /// Requests of all other classes, in words.
        wanted: String,
    },
}

/// Gives each class its colors, out of `count` colors that have `per_color` of the cache each.
///
/// Colors that classes list come first, then the lowest free ones for those that want a number or a size, in the order of the policy.
pub fn assign(policy: &Policy, count: u32, per_color: Bytes) -> Result<Vec<Assigned>, AssignError> {
    let wants = |share: &Share| match share {
        Share::Bytes(bytes) => bytes.0.div_ceil(per_color.0.max(1)).max(1),
        Share::Percent(percent) => (u64::from(count) * u64::from(*percent)).div_ceil(100),
        Share::Count(count) => u64::from(*count),
        Share::List(colors) => colors.len() as u64,
        Share::Rest => 0,
    };
    let wanted = || {
        let named = policy.classes.iter().filter(|class| class.share != Share::Rest);
        named.map(|class| format!("{} {}", class.name, wants(&class.share))).collect::<Vec<_>>().join(", ")
    };
    let mut colors: Vec<BTreeSet<u32>> = vec![BTreeSet::new(); policy.classes.len()];
    for (index, class) in policy.classes.iter().enumerate() {
        let Share::List(list) = &class.share else { continue };
        if let Some(color) = list.iter().find(|color| **color >= count) {
            return Err(AssignError::NoSuchColor { class: class.name.clone(), color: *color, count });
        }
        let own: BTreeSet<u32> = list.iter().copied().collect();
        for (other, theirs) in
            policy.classes.iter().zip(&colors).filter(|(other, _)| other.exclusive || class.exclusive)
        {
            let common: Vec<u32> = own.intersection(theirs).copied().collect();
            if !common.is_empty() {
                let (one, other) = (other.name.clone(), class.name.clone());
                return Err(AssignError::Overlap { one, other, colors: format_list(&common) });
            }
        }
        colors[index] = own;
    }
    for (index, class) in policy.classes.iter().enumerate() {
        if matches!(class.share, Share::List(_) | Share::Rest) {
            continue;
        }
        let taken: BTreeSet<u32> = colors.iter().flatten().copied().collect();
        let free = (0..count).filter(|color| !taken.contains(color));
        let own: BTreeSet<u32> = free.take(wants(&class.share) as usize).collect();
        if (own.len() as u64) < wants(&class.share) {
            return Err(AssignError::TooMany { count, per_color, wanted: wanted() });
        }
        colors[index] = own;
    }
    let of_others: BTreeSet<u32> = policy
        .classes
        .iter()
        .zip(&colors)
        .filter(|(class, _)| class.exclusive)
        .flat_map(|(_, colors)| colors.iter().copied())
        .collect();
    for (index, class) in policy.classes.iter().enumerate().filter(|(_, class)| class.share == Share::Rest) {
        colors[index] = (0..count).filter(|color| !of_others.contains(color)).collect();
        if colors[index].is_empty() {
            return Err(AssignError::NothingLeft { class: class.name.clone(), wanted: wanted() });
        }
    }
    let requested = |share: &Share| match share {
        Share::Bytes(bytes) => Some(*bytes),
        Share::Percent(percent) => Some(Bytes(u64::from(count) * per_color.0 * u64::from(*percent) / 100)),
        Share::Count(_) | Share::List(_) | Share::Rest => None,
    };
    let assigned = policy.classes.iter().zip(colors).map(|(class, colors)| Assigned {
        class: class.name.clone(),
        rounded_from: requested(&class.share).filter(|bytes| bytes.0 != colors.len() as u64 * per_color.0),
        colors: colors.into_iter().collect(),
    });
    Ok(assigned.collect())
}

/// Returns the changes from one policy to the next, a line for each class that changes. Each policy comes with the colors of its classes.
pub fn changes(before: (&Policy, &[Assigned]), after: (&Policy, &[Assigned])) -> Vec<String> {
    let mut lines = Vec::new();
    let of = |(policy, assigned): (&Policy, &[Assigned]), name: &str| {
        let index = policy.classes.iter().position(|class| class.name == name)?;
        Some((policy.classes[index].clone(), assigned[index].colors.clone()))
    };
    for class in &before.0.classes {
        let Some((new, new_colors)) = of(after, &class.name) else {
            lines.push(format!("{}: is gone", class.name));
            continue;
        };
        let (_, colors) = of(before, &class.name).unwrap_or_else(|| (class.clone(), Vec::new()));
        let mut what = Vec::new();
        if colors != new_colors {
            what.push(format!("colors {} become {}", format_list(&colors), format_list(&new_colors)));
        }
        if class.members != new.members {
            let listed = |members: &[super::Member]| {
                members.iter().map(|member| format!("{{ {member} }}")).collect::<Vec<_>>().join(" ")
            };
            what.push(format!("members {} become {}", listed(&class.members), listed(&new.members)));
        }
        if (class.exclusive, class.max_pause) != (new.exclusive, new.max_pause) {
            what.push("exclusive or max_pause changes".to_owned());
        }
        if !what.is_empty() {
            lines.push(format!("{}: {}", class.name, what.join("; ")));
        }
    }
    for class in after.0.classes.iter().filter(|class| of(before, &class.name).is_none()) {
        let colors = of(after, &class.name).map(|(_, colors)| format_list(&colors)).unwrap_or_default();
        lines.push(format!("{}: is new, colors {colors}", class.name));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::read;

    const PER_COLOR: Bytes = Bytes(64 << 10);

    fn class(name: &str, share: &str) -> String {
        format!("[class.{name}]\n{share}\nmembers = [{{ exe = \"/bin/{name}\" }}]\n")
    }

    fn assigned(classes: &[(&str, &str)]) -> Result<Vec<Vec<u32>>, String> {
        let text: String = classes.iter().map(|(name, share)| class(name, share)).collect();
        let assigned = assign(&read(&text).unwrap(), 16, PER_COLOR).map_err(|error| error.to_string())?;
        Ok(assigned.into_iter().map(|assigned| assigned.colors).collect())
    }

    #[test]
    fn lists_come_first_then_sizes_and_the_rest_is_what_nobody_has_for_itself() {
        let found =
            assigned(&[("a", "cache = \"100K\""), ("b", "cache = \"rest\""), ("c", "colors = \"0,5\"")]).unwrap();
        assert_eq!(found, [vec![1, 2], (3..16).filter(|color| *color != 5).collect(), vec![0, 5]]);
        let shared = assigned(&[("a", "colors = \"0-3\"\nexclusive = false"), ("b", "cache = \"rest\"")]).unwrap();
        assert_eq!(shared, [vec![0, 1, 2, 3], (0..16).collect()]);
    }

    #[test]
    fn a_size_is_rounded_up_and_that_is_told() {
        let text = [("a", "100K"), ("b", "128K"), ("c", "25%"), ("d", "30 %")]
            .map(|(name, share)| class(name, &format!("cache = {share:?}")));
        let assigned = assign(&read(&text.concat()).unwrap(), 16, PER_COLOR).unwrap();
        let rounded: Vec<_> = assigned.iter().map(|class| (class.colors.len(), class.rounded_from)).collect();
        let thirty_percent = Bytes((1 << 20) * 30 / 100);
        assert_eq!(rounded, [(2, Some(Bytes(100 << 10))), (2, None), (4, None), (5, Some(thirty_percent))]);
    }

    #[test]
    fn too_much_is_refused_with_names_and_sizes() {
        for (classes, expected) in [
            (&[("a", "colors = 9"), ("b", "cache = \"512K\"")][..], "a 9, b 8"),
            (&[("a", "colors = \"0-3\""), ("b", "colors = \"3-5\"")], "both list the colors 3"),
            (&[("a", "colors = \"0-3\"\nexclusive = false"), ("b", "colors = \"3-5\"")], "both list the colors 3"),
            (&[("a", "colors = \"16\"")], "from 0 to 15"),
            (&[("a", "colors = 16"), ("b", "cache = \"rest\"")], "nothing is left for class b: a 16"),
        ] {
            let error = assigned(classes).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn a_change_is_told_class_by_class() {
        let of = |text: &str| {
            let policy = read(text).unwrap();
            let assigned = assign(&policy, 16, PER_COLOR).unwrap();
            (policy, assigned)
        };
        let before = of(&(class("a", "colors = 4") + &class("b", "cache = \"rest\"") + &class("c", "colors = 1")));
        let after = of(&(class("a", "colors = 5") + &class("b", "cache = \"rest\"") + &class("d", "colors = 1")));
        let told = changes((&before.0, &before.1), (&after.0, &after.1));
        assert_eq!(
            told,
            ["a: colors 0-3 become 0-4", "b: colors 5-15 become 6-15", "c: is gone", "d: is new, colors 5",]
        );
        assert!(changes((&after.0, &after.1), (&after.0, &after.1)).is_empty());
    }
}
