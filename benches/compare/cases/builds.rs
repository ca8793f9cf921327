//! The divvy under test and, with `--against`, another build of it, with the same servers and subjects.

use super::{FEW_RULES, Setting};
use crate::divvy::{Divvy, Home, rules};
use crate::rounds::Subject;
use crate::table::OTHER;

#[derive(Debug)]
pub struct Builds {
    present: Build,
    other: Option<Build>,
}

#[derive(Debug)]
pub struct Build {
    pub home: Home,
    pub divvy: Divvy,
}

impl Builds {
    pub fn serve(setting: &Setting, durability: &'static str, credit_limit: u64) -> anyhow::Result<Self> {
        let home = || Home::new(&setting.directory, durability, &rules(FEW_RULES, credit_limit));
        let present = Build::start(home()?)?;
        let other = setting.against.as_ref().map(|program| Build::start(home()?.with_program(program))).transpose()?;
        Ok(Self { present, other })
    }

    pub fn current(&self) -> &Build {
        &self.present
    }

    /// Stops the other build, and returns this one.
    pub fn into_current(self) -> Build {
        self.present
    }

    /// Returns the same subjects for each build.
    pub fn subjects(&self, of: impl Fn(&Divvy) -> Vec<Subject>) -> Vec<Subject> {
        let mut subjects = of(&self.present.divvy);
        let others = self.other.iter().flat_map(|build| of(&build.divvy));
        subjects.extend(others.map(|subject| Subject { name: format!("{OTHER}{}", subject.name), ..subject }));
        subjects
    }
}

impl Build {
    fn start(home: Home) -> anyhow::Result<Self> {
        let divvy = home.start()?;
        Ok(Self { home, divvy })
    }
}
