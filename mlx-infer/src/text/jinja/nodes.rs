//! The syntax tree of a template.

use std::sync::Arc;

/// A name, as its index in the template's list of names.
pub(super) type NameId = usize;

#[derive(Debug)]
pub(super) struct Expr {
    pub(super) kind: ExprKind,
    /// The nesting depth of the expressions in it.
    pub(super) depth: u32,
}

#[derive(Debug)]
pub(super) enum ExprKind {
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    /// A text, as its index in the template's list of texts.
    Text(usize),
    Name(NameId),
    List(Vec<Expr>),
    Tuple(Vec<Expr>),
    Dict(Vec<(Expr, Expr)>),
    Not(Box<Expr>),
    Negative(Box<Expr>),
    Positive(Box<Expr>),
    Binary(Binary, Box<(Expr, Expr)>),
    And(Box<(Expr, Expr)>),
    Or(Box<(Expr, Expr)>),
    Concat(Vec<Expr>),
    Compare(Box<Expr>, Vec<(Comparison, Expr)>),
    /// `then if test else otherwise`.
    If(Box<(Expr, Expr, Option<Expr>)>),
    Attribute(Box<Expr>, Arc<str>),
    Item(Box<(Expr, Expr)>),
    Slice(Box<(Expr, Bounds)>),
    Call(Box<(Expr, Arguments)>),
    /// A filter. In `{% filter %}` and `{% set a
    ///
    /// filter %}` it has no operand: it gets the block's text.
    Filter(Option<Box<Expr>>, Arc<str>, Box<Arguments>),
    Test(Box<Expr>, Arc<str>, Box<Arguments>),
}

pub(super) type Bounds = [Option<Expr>; 3];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Binary {
    Add,
    Subtract,
    Multiply,
    Divide,
    FloorDivide,
    Modulo,
    Power,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    In,
    NotIn,
}

#[derive(Debug, Default)]
pub(super) struct Arguments {
    pub(super) positional: Vec<Expr>,
    pub(super) named: Vec<(Arc<str>, Expr)>,
    /// The arguments `*list` and `**dict`.
    pub(super) list: Option<Expr>,
    pub(super) dict: Option<Expr>,
}

#[derive(Debug)]
pub(super) enum Target {
    Name(NameId),
    /// `namespace.attribute`.
    Attribute(NameId, Arc<str>),
    Tuple(Vec<Self>),
}

pub(super) type Body = Vec<Statement>;

#[derive(Debug)]
pub(super) struct Statement {
    pub(super) kind: StatementKind,
    pub(super) line: u32,
}

#[derive(Debug)]
pub(super) enum StatementKind {
    Data(String),
    Output(Expr),
    /// The index in the template's list of loops.
    For(usize),
    If(Vec<(Expr, Body)>, Body),
    Set(Target, Expr),
    /// `{% set target | filter %}body{% endset %}`.
    SetBlock(Target, Option<Expr>, Body),
    With(Vec<(Target, Expr)>, Body),
    Filter(Expr, Body),
    /// The index in the template's list of macros.
    Macro(usize),
    /// The call, and the index of the macro that is its `caller`.
    CallBlock(Expr, usize),
    /// `{% generation %}` and `{% block %}`.
    Scope(Body),
    Autoescape(Expr, Body),
    /// `include`, `import`, `from` and `extends`, which fail because there are no other templates.
    Other(&'static str),
    Break,
    Continue,
}

#[derive(Debug)]
pub(super) struct For {
    pub(super) target: Target,
    pub(super) items: Expr,
    pub(super) test: Option<Expr>,
    pub(super) recursive: bool,
    pub(super) body: Body,
    pub(super) otherwise: Body,
}

#[derive(Debug)]
pub(super) struct Macro {
    pub(super) name: Option<NameId>,
    pub(super) parameters: Vec<NameId>,
    /// The default values of the last parameters.
    pub(super) defaults: Vec<Expr>,
    pub(super) body: Body,
    /// Which of `varargs`, `kwargs` and `caller` the body uses.
    pub(super) uses: [bool; 3],
}

/// A parsed template.
#[derive(Debug, Default)]
pub(super) struct Parsed {
    pub(super) body: Body,
    pub(super) names: Vec<String>,
    pub(super) texts: Vec<String>,
    pub(super) loops: Vec<For>,
    pub(super) macros: Vec<Macro>,
}
