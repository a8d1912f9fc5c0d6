//! [`Names`]: addresses of services by the names of their hosts. A resolver may take many seconds, and blocks; the loop must not.

use glowfs_rt::sync::{OneSender, oneshot};
use glowfs_rt::{Address, BadAddress, Rt};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

type Answer = Result<Address, BadAddress>;

/// Who waits for each name.
type Asked = Rc<RefCell<BTreeMap<String, Vec<OneSender<Answer>>>>>;

/// See the module.
#[derive(Default)]
pub(crate) struct Names {
    /// Names that are being looked up, and who waits for each. A look-up goes on when nobody waits any more: the next one who asks joins it,
    /// so that a resolver which does not answer holds one helper thread for each name.
    asked: Asked,
}

impl Names {
    /// The address that `text` stands for.
    pub(crate) async fn resolve(&self, rt: &Rt, text: &str) -> Answer {
        if let Some(literal) = Address::literal(text) {
            return literal;
        }
        let (tell, told) = oneshot();
        let first = {
            let mut asked = self.asked.borrow_mut();
            let waiting = asked.entry(text.to_owned()).or_default();
            waiting.push(tell);
            waiting.len() == 1
        };
        if first {
            rt.spawn_detached(look_up(rt.clone(), text.to_owned(), self.asked.clone()));
        }
        let ended =
            |_| BadAddress::Unknown { address: text.to_owned(), why: "the look-up ended".into() };
        told.await.unwrap_or_else(|e| Err(ended(e)))
    }
}

async fn look_up(rt: Rt, text: String, asked: Asked) {
    let name = text.clone();
    let answer: Answer = rt.unblock(move || name.parse()).await;
    let waiting = asked.borrow_mut().remove(&text).unwrap_or_default();
    for tell in waiting {
        // Some have given up.
        let _ = tell.send(answer.clone());
    }
}
