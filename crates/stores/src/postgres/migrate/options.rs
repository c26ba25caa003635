//! The options of a migration. All are checked before anything is sent to a server.

use std::fmt;
use std::str::FromStr;

use super::super::table::Table;

/// The number of partitions: one would be a plain table, and more slow down every
/// statement.
const PARTITIONS: std::ops::RangeInclusive<u32> = 2..=256;
/// The longest identifier that PostgreSQL does not truncate.
const IDENTIFIER_BYTES_MAX: usize = 63;
/// The longest name of a type; real ones are far shorter.
const TYPE_BYTES_MAX: usize = 100;

/// The options of a migration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// The table.
    pub table: Table,
    /// The number of hash partitions; only for a new table.
    pub partitions: Option<u32>,
    /// Row-level security for an application.
    pub rls: Option<RowSecurity>,
    /// Tables of the application that operations may refer to.
    pub resources: Vec<Resource>,
}

impl Options {
    /// The plain table of this name.
    pub fn for_table(table: Table) -> Self {
        Self {
            table,
            ..Self::default()
        }
    }

    /// Checks rules about several options.
    pub(super) fn check(&self) -> Result<(), OptionError> {
        if let Some(count) = self.partitions
            && !PARTITIONS.contains(&count)
        {
            return Err(OptionError::Partitions { count });
        }
        for (place, resource) in self.resources.iter().enumerate() {
            let name = &resource.name;
            if self.resources[..place].iter().any(|one| one.name == *name) {
                return Err(OptionError::Twice { name: name.clone() });
            }
            // The longest name that contains both is that of the index.
            let index = self.table.name().len() + "_resource_".len() + name.len();
            if index > IDENTIFIER_BYTES_MAX {
                return Err(OptionError::Long { name: name.clone() });
            }
        }
        Ok(())
    }
}

/// Row-level security: every user of an application's role sees its own rows only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowSecurity {
    role: Identifier,
    user_expression: String,
}

impl RowSecurity {
    /// For the role that the application connects as, and the SQL expression for
    /// its current user.
    pub fn new(role: &str, user_expression: &str) -> Result<Self, OptionError> {
        if user_expression.trim().is_empty() || user_expression.contains('\0') {
            return Err(OptionError::User);
        }
        Ok(Self {
            role: Identifier::new(role).ok_or(OptionError::Role)?,
            user_expression: user_expression.trim().to_owned(),
        })
    }

    pub(super) fn role(&self) -> &Identifier {
        &self.role
    }

    pub(super) fn user_expression(&self) -> &str {
        &self.user_expression
    }
}

/// A resource that an operation may refer to: a row of a table of the application,
/// by its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resource {
    name: String,
    schema: Option<Identifier>,
    table: Identifier,
    column: Identifier,
    type_: Option<String>,
}

impl Resource {
    /// Its name: the column is `resource_{name}`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The referenced table, quoted.
    pub(super) fn target(&self) -> String {
        match &self.schema {
            Some(schema) => format!("{}.{}", schema.quoted(), self.table.quoted()),
            None => self.table.quoted(),
        }
    }

    /// The referenced column.
    pub(super) fn column(&self) -> &Identifier {
        &self.column
    }

    /// That column's type, if it was given.
    pub(super) fn type_(&self) -> Option<&str> {
        self.type_.as_deref()
    }

    /// The same, with its type from the catalog.
    pub(super) fn with_type(&self, type_: String) -> Self {
        Self {
            type_: Some(type_),
            ..self.clone()
        }
    }
}

/// `name=schema.table(column)`, optionally with `:type`.
impl FromStr for Resource {
    type Err = OptionError;

    fn from_str(text: &str) -> Result<Self, OptionError> {
        let refused = || OptionError::Resource {
            text: text.to_owned(),
        };
        let (name, rest) = text.split_once('=').ok_or_else(refused)?;
        if !is_plain(name) || name.len() > IDENTIFIER_BYTES_MAX {
            return Err(OptionError::ResourceName {
                name: name.to_owned(),
            });
        }
        let (first, rest) = Identifier::read(rest).ok_or_else(refused)?;
        let (schema, table, rest) = match rest.strip_prefix('.') {
            None => (None, first, rest),
            Some(rest) => {
                let (table, rest) = Identifier::read(rest).ok_or_else(refused)?;
                (Some(first), table, rest)
            }
        };
        let rest = rest.strip_prefix('(').ok_or_else(refused)?;
        let (column, rest) = Identifier::read(rest).ok_or_else(refused)?;
        let rest = rest.strip_prefix(')').ok_or_else(refused)?;
        let type_ = match rest.strip_prefix(':') {
            None if rest.is_empty() => None,
            None => return Err(refused()),
            Some(type_) if is_type(type_) => Some(type_.to_owned()),
            Some(type_) => {
                return Err(OptionError::Type {
                    name: name.to_owned(),
                    type_: type_.to_owned(),
                });
            }
        };
        Ok(Self {
            name: name.to_owned(),
            schema,
            table,
            column,
            type_,
        })
    }
}

/// As it was given.
impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}=", self.name)?;
        if let Some(schema) = &self.schema {
            write!(f, "{schema}.")?;
        }
        write!(f, "{}({})", self.table, self.column)?;
        match &self.type_ {
            Some(type_) => write!(f, ":{type_}"),
            None => Ok(()),
        }
    }
}

/// A name that Onceward did not choose: any that PostgreSQL accepts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Identifier(String);

impl Identifier {
    fn new(text: &str) -> Option<Self> {
        let is_good = (1..=IDENTIFIER_BYTES_MAX).contains(&text.len()) && !text.contains('\0');
        is_good.then(|| Self(text.to_owned()))
    }

    /// Reads a name as SQL does, plain or in quotes, and returns the rest. Upper
    /// case needs quotes: PostgreSQL would fold it, which is seldom intended.
    fn read(text: &str) -> Option<(Self, &str)> {
        let Some(quoted) = text.strip_prefix('"') else {
            let end = text.find(|c| !is_plain_char(c)).unwrap_or(text.len());
            let (name, rest) = text.split_at(end);
            return is_plain(name).then_some((Self::new(name)?, rest));
        };
        let mut name = String::new();
        let mut rest = quoted;
        loop {
            let (part, after) = rest.split_once('"')?;
            name.push_str(part);
            match after.strip_prefix('"') {
                Some(more) => {
                    name.push('"');
                    rest = more;
                }
                None => return Some((Self::new(&name)?, after)),
            }
        }
    }

    /// As it is.
    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    /// For a statement.
    pub(super) fn quoted(&self) -> String {
        format!("\"{}\"", self.0.replace('"', "\"\""))
    }
}

impl fmt::Display for Identifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if is_plain(&self.0) {
            f.write_str(&self.0)
        } else {
            f.write_str(&self.quoted())
        }
    }
}

fn is_plain_char(c: char) -> bool {
    matches!(c, 'a'..='z' | '0'..='9' | '_')
}

fn is_plain(name: &str) -> bool {
    name.starts_with(|first: char| !first.is_ascii_digit()) && name.chars().all(is_plain_char)
}

/// Types whose names are more than one word.
const TYPES_IN_WORDS: [&str; 6] = [
    "double precision",
    "character varying",
    "timestamp with time zone",
    "timestamp without time zone",
    "time with time zone",
    "time without time zone",
];

/// A name, optionally with a schema, or one of the types of several words;
/// optionally numbers, as in `numeric(10, 2)`. Nothing else gets into the SQL.
fn is_type(text: &str) -> bool {
    let (name, numbers) = match text.split_once('(') {
        None => (text, None),
        Some((name, rest)) => match rest.strip_suffix(')') {
            Some(numbers) => (name.trim_end(), Some(numbers)),
            None => return false,
        },
    };
    let is_number = |part: &str| {
        let part = part.trim();
        !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit())
    };
    let is_name = |part: &str| match part.strip_prefix('"').and_then(|p| p.strip_suffix('"')) {
        Some(quoted) => !quoted.is_empty() && !quoted.contains('"'),
        None => {
            !part.is_empty()
                && !part.starts_with(|first: char| first.is_ascii_digit())
                && part.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        }
    };
    let named = TYPES_IN_WORDS.contains(&name)
        || name.split('.').count() <= 2 && name.split('.').all(is_name);
    text.len() <= TYPE_BYTES_MAX
        && named
        && numbers.is_none_or(|numbers| numbers.split(',').all(is_number))
}

/// Why options are invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OptionError {
    /// Not a number of partitions.
    #[error(
        "partitions: {count} is not between {} and {}; omit it for one table",
        PARTITIONS.start(),
        PARTITIONS.end()
    )]
    Partitions {
        /// The given value.
        count: u32,
    },
    /// Not a role's name.
    #[error(
        "rls-role: a role has a name of 1 to {IDENTIFIER_BYTES_MAX} bytes; write the one that the application connects as"
    )]
    Role,
    /// Not an expression.
    #[error(
        "rls-user: the expression is empty or has a NUL in it; write SQL that returns the user, such as current_setting('app.user_id', true)"
    )]
    User,
    /// Not a reference.
    #[error(
        "resource: `{}` is not of the form NAME=TABLE(COLUMN); write project=tenant.projects(id), for example, and names with other than a-z, 0-9 and _ in double quotes",
        text.escape_debug()
    )]
    Resource {
        /// The given value.
        text: String,
    },
    /// Not a name for a reference.
    #[error(
        "resource: `{}` is not a name of lower-case letters, digits and `_`; write project=tenant.projects(id), for example",
        name.escape_debug()
    )]
    ResourceName {
        /// The given value.
        name: String,
    },
    /// Not a type.
    #[error(
        "resource {name}: `{}` is not a type; write {name}=tenant.projects(id):uuid, for example",
        type_.escape_debug()
    )]
    Type {
        /// The resource.
        name: String,
        /// The given value.
        type_: String,
    },
    /// A name for two references.
    #[error("resource: `{name}` is given twice; use another name for one of them")]
    Twice {
        /// Which.
        name: String,
    },
    /// The names are too long together.
    #[error(
        "resource: `{name}` and the table's name are longer than {} characters together; shorten one of them",
        IDENTIFIER_BYTES_MAX - "_resource_".len()
    )]
    Long {
        /// Which.
        name: String,
    },
    /// There is no database in which to look up a type.
    #[error(
        "resource {name}: `migrate print` needs the type of the referenced column; write {resource}:uuid, if it is uuid"
    )]
    NoType {
        /// Which.
        name: String,
        /// As it was given.
        resource: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resource(text: &str) -> Resource {
        text.parse().expect(text)
    }

    #[test]
    fn resources_are_parsed() {
        let cases = [
            (
                "project=tenant.projects(id)",
                "\"tenant\".\"projects\"",
                "id",
                None,
            ),
            ("p=projects(id):uuid", "\"projects\"", "id", Some("uuid")),
            (
                "p=\"My.App\".\"Pro\"\"jects\"(\"Id\"):numeric(10, 2)",
                "\"My.App\".\"Pro\"\"jects\"",
                "Id",
                Some("numeric(10, 2)"),
            ),
            ("a_1=s.user(_k)", "\"s\".\"user\"", "_k", None),
        ];
        for (text, target, column, type_) in cases {
            let read = resource(text);
            assert_eq!(
                (read.target().as_str(), read.column().as_str(), read.type_()),
                (target, column, type_),
                "{text}"
            );
            assert_eq!(read.to_string(), text);
        }
    }

    #[test]
    fn malformed_resources_are_refused() {
        let form = "is not of the form NAME=TABLE(COLUMN); write project=tenant.projects(id)";
        let name = "is not a name of lower-case letters";
        let type_ = "is not a type; write p=tenant.projects(id):uuid";
        let long = format!("p={}(id)", "t".repeat(64));
        let cases = [
            ("", form),
            ("project", form),
            ("p=", form),
            ("p=projects", form),
            ("p=projects(", form),
            ("p=projects()", form),
            ("p=projects(id", form),
            ("p=projects(id)x", form),
            ("p=projects(a,b)", form),
            ("p=a.b.c(id)", form),
            ("p=.b(id)", form),
            ("p=Projects(id)", form),
            ("p=1a(id)", form),
            ("p=\"a(id)", form),
            ("p=\"\"(id)", form),
            ("p=a b(id)", form),
            ("p=a;drop(id)", form),
            ("p=\"a\0\"(id)", form),
            (long.as_str(), form),
            ("=projects(id)", name),
            ("Project=projects(id)", name),
            ("a-b=projects(id)", name),
            ("1=projects(id)", name),
            ("p=projects(id):", type_),
            ("p=projects(id):uuid;drop table x", type_),
            ("p=projects(id):'", type_),
            ("p=projects(id):1", type_),
            ("p=projects(id):uuid, DROP COLUMN reply", type_),
            ("p=projects(id):uuid DEFAULT gen_random_uuid()", type_),
            ("p=projects(id):numeric(10", type_),
            ("p=projects(id):numeric()", type_),
            ("p=projects(id):a.b.c", type_),
        ];
        for (text, want) in cases {
            let error = text.parse::<Resource>().expect_err(text).to_string();
            assert!(error.contains(want), "{text}: {error}");
            assert!(error.starts_with("resource"), "{error}");
        }
    }

    #[test]
    fn roles_and_user_expressions_are_checked() {
        for role in ["app", "My Role", "user", "r\"o'le"] {
            assert!(RowSecurity::new(role, "current_user").is_ok(), "{role}");
        }
        for role in ["", "a\0b", "r".repeat(64).as_str()] {
            let refused = RowSecurity::new(role, "current_user");
            assert_eq!(refused, Err(OptionError::Role), "{role:?}");
        }
        for user in ["", " \n", "a\0"] {
            let refused = RowSecurity::new("app", user);
            assert_eq!(refused, Err(OptionError::User), "{user:?}");
        }
    }

    #[test]
    fn options_must_fit_together() {
        let with = |partitions, resources: &[&str]| Options {
            partitions,
            resources: resources.iter().map(|text| resource(text)).collect(),
            ..Options::default()
        };
        let longest = format!("{}=t(id)", "r".repeat(35));
        let too_long = format!("{}=t(id)", "r".repeat(36));
        let good = [
            with(None, &[]),
            with(Some(2), &["a=t(id)", "b=t(id)"]),
            with(Some(256), &[&longest]),
        ];
        for options in good {
            assert_eq!(options.check(), Ok(()), "{options:?}");
        }
        let bad = [
            (
                with(Some(0), &[]),
                "partitions: 0 is not between 2 and 256; omit it for one table".to_owned(),
            ),
            (
                with(Some(1), &[]),
                "partitions: 1 is not between 2 and 256; omit it for one table".to_owned(),
            ),
            (
                with(Some(257), &[]),
                "partitions: 257 is not between 2 and 256; omit it for one table".to_owned(),
            ),
            (
                with(None, &["a=t(id)", "a=u(id)"]),
                "resource: `a` is given twice; use another name for one of them".to_owned(),
            ),
            (
                with(None, &[&too_long]),
                format!(
                    "resource: `{}` and the table's name are longer than 53 characters together; shorten one of them",
                    "r".repeat(36)
                ),
            ),
        ];
        for (options, want) in bad {
            let refused = options.check().expect_err(&want);
            assert_eq!(refused.to_string(), want);
        }
    }
}
