//! Another configuration.

use flexcp_translator::{Config, Cursor, Service};

use super::{Outcome, Scenario, Setup};

impl Scenario {
    /// From here on these are FlexCP's services.
    pub(crate) fn configure(&mut self, services: &[Service], generation: u64) {
        let setup = Setup::new();
        self.configure_with(services, &setup, generation);
    }

    /// The same, with the accesses and the rules of `setup`.
    pub(crate) fn configure_with(&mut self, services: &[Service], setup: &Setup, generation: u64) {
        self.checker.observe_end();
        for translator in self.translators() {
            let config = Config {
                services: services.to_vec(),
                accesses: setup.accesses.clone(),
                rules: setup.rules.clone(),
                limits: setup.limits,
                timeouts: setup.timeouts,
                ..Config::default()
            };
            translator.configure(config, generation);
        }
    }

    /// From here on FlexCP does what `setup` says.
    pub(crate) fn configure_as(&mut self, setup: &Setup, generation: u64) {
        self.checker.observe_end();
        self.translators()
            .for_each(|translator| translator.configure(setup.config(), generation));
    }

    /// Connections that are there are judged by the rules in force.
    pub(crate) fn judge_anew(&mut self) -> Outcome {
        self.tell(&|translator, now| {
            let mut next = Some(Cursor::default());
            while let Some(from) = next {
                next = translator.judge_anew(now, from, 1);
            }
        })
    }

    /// The ends of connections that no service covers since a generation up to `upto` are told.
    pub(crate) fn end_stranded(&mut self, upto: u64) -> Outcome {
        self.tell(&|translator, now| while translator.end_stranded(now, upto, 1) {})
    }

    /// The same of all connections of a service.
    pub(crate) fn end_service(&mut self, id: u16) -> Outcome {
        let id = flexcp_translator::ServiceId(id);
        self.tell(&|translator, now| while translator.end_service(now, id, 1) {})
    }

    /// Those connections are forgotten.
    pub(crate) fn forget_stranded(&mut self, upto: u64) {
        self.translators()
            .for_each(|translator| translator.forget_stranded(upto));
        self.forget_closed();
    }
}
