//! Another configuration.

use flexcp_translator::{Config, Service};

use super::{Outcome, Scenario, Setup};

impl Scenario {
    /// From here on these are FlexCP's services.
    pub(crate) fn configure(&mut self, services: &[Service], generation: u64) {
        self.checker.observe_end();
        let setup = Setup::new();
        for translator in self.translators() {
            let config = Config {
                services: services.to_vec(),
                limits: setup.limits,
                timeouts: setup.timeouts,
                ..Config::default()
            };
            translator.configure(config, generation);
        }
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
