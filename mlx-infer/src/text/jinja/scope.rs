//! Variables, in scopes. A scope can read the scopes around it.

use std::cell::RefCell;
use std::rc::Rc;

use super::nodes::NameId;
use super::values::Value;

#[derive(Debug, Default)]
pub(super) struct Scope {
    variables: RefCell<Vec<(NameId, Value)>>,
    parent: Option<Rc<Self>>,
}

impl Scope {
    pub(super) fn inside(parent: &Rc<Self>) -> Rc<Self> {
        Rc::new(Self {
            variables: RefCell::default(),
            parent: Some(Rc::clone(parent)),
        })
    }

    pub(super) fn set(&self, name: NameId, value: Value) {
        let mut variables = self.variables.borrow_mut();
        match variables.iter_mut().find(|(found, _)| *found == name) {
            Some((_, slot)) => *slot = value,
            None => variables.push((name, value)),
        }
    }

    pub(super) fn get(&self, name: NameId) -> Option<Value> {
        let mut scope = self;
        loop {
            let variables = scope.variables.borrow();
            if let Some((_, value)) = variables.iter().find(|(found, _)| *found == name) {
                return Some(value.clone());
            }
            scope = scope.parent.as_ref()?;
        }
    }
}
