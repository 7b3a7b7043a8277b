//! The role of a field in its module: skipped, a child module or a buffer.

use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens;
use syn::{Field, Ident, LitStr, Result, Type, ext::IdentExt};

/// The type of a field, and how the field is visited.
pub(crate) struct Child<'a> {
    pub(crate) ty: &'a Type,
    pub(crate) kind: Kind,
}

/// How a field is visited.
pub(crate) enum Kind {
    /// Not at all.
    Skipped,
    /// As a module under this name; with `None` the field adds nothing to the names of its
    /// parameters.
    Module(Option<String>),
    /// As a buffer under this name.
    State(String),
}

impl<'a> Child<'a> {
    /// Reads the field at `index`. `alone`: whether it is the only unnamed field of its struct or
    /// variant.
    pub(crate) fn of(field: &'a Field, index: usize, alone: bool) -> Result<Self> {
        let attributes = Attributes::of(field)?;
        let own = match &field.ident {
            Some(name) => Some(name.unraw().to_string()),
            None if alone => None,
            None => Some(index.to_string()),
        };
        let name = attributes.rename.or(own);
        let kind = match (attributes.mark, name) {
            (Some(Mark::Skip), _) => Kind::Skipped,
            (Some(Mark::State), Some(name)) => Kind::State(name),
            (Some(Mark::State), None) => {
                let message = "a buffer needs a name: name the field, or add `rename = \"..\"`";
                return Err(syn::Error::new_spanned(field, message));
            }
            (Some(Mark::Flat), _) => Kind::Module(None),
            (None, _) if is_plain(&field.ty) => Kind::Skipped,
            (None, name) => Kind::Module(name),
        };
        let ty = &field.ty;
        Ok(Self { ty, kind })
    }

    /// Whether the field is a module and its type contains the type parameter `param`.
    pub(crate) fn is_module_of(&self, param: &Ident) -> bool {
        matches!(self.kind, Kind::Module(_)) && mentions(self.ty.to_token_stream(), param)
    }
}

fn mentions(tokens: TokenStream, name: &Ident) -> bool {
    tokens.into_iter().any(|token| match token {
        TokenTree::Ident(ident) => ident == *name,
        TokenTree::Group(group) => mentions(group.stream(), name),
        _ => false,
    })
}

#[derive(Clone, Copy)]
enum Mark {
    Skip,
    State,
    Flat,
}

#[derive(Default)]
struct Attributes {
    mark: Option<Mark>,
    rename: Option<String>,
}

impl Attributes {
    fn of(field: &Field) -> Result<Self> {
        let mut all = Self::default();
        for attribute in field.attrs.iter().filter(|a| a.path().is_ident("module")) {
            attribute.parse_nested_meta(|meta| {
                let mark = if meta.path.is_ident("skip") {
                    Mark::Skip
                } else if meta.path.is_ident("state") {
                    Mark::State
                } else if meta.path.is_ident("flat") {
                    Mark::Flat
                } else if meta.path.is_ident("rename") {
                    let name: LitStr = meta.value()?.parse()?;
                    let value = name.value();
                    if value.is_empty() || value.split('.').any(str::is_empty) {
                        let message = "a name is not empty, and has no empty part between dots";
                        return Err(syn::Error::new_spanned(name, message));
                    }
                    all.rename = Some(value);
                    return Ok(());
                } else {
                    return Err(
                        meta.error("expected `skip`, `state`, `flat` or `rename = \"name\"`")
                    );
                };
                match all.mark.replace(mark) {
                    None => Ok(()),
                    Some(_) => Err(meta.error("`skip`, `state` and `flat` exclude each other")),
                }
            })?;
            if all.rename.is_some() && matches!(all.mark, Some(Mark::Skip | Mark::Flat)) {
                let message = "`rename` has no meaning for a field whose name is not used";
                return Err(syn::Error::new_spanned(attribute, message));
            }
        }
        Ok(all)
    }
}

/// Types that hold no parameters and are skipped without an attribute.
const PLAIN: [&str; 18] = [
    "i8", "i16", "i32", "i64", "i128", "isize", "u8", "u16", "u32", "u64", "u128", "usize", "f32",
    "f64", "bool", "char", "str", "String",
];

/// Containers that are skipped without an attribute if their elements are.
const CONTAINERS: [&str; 5] = ["Option", "Vec", "Box", "Rc", "Arc"];

/// Whether the type holds only numbers, texts or nothing.
fn is_plain(ty: &Type) -> bool {
    match ty {
        Type::Array(array) => is_plain(&array.elem),
        Type::Slice(slice) => is_plain(&slice.elem),
        Type::Reference(reference) => is_plain(&reference.elem),
        Type::Paren(inner) => is_plain(&inner.elem),
        Type::Group(inner) => is_plain(&inner.elem),
        Type::Tuple(tuple) => tuple.elems.iter().all(is_plain),
        Type::Path(path) if path.qself.is_none() => {
            let Some(last) = path.path.segments.last() else {
                return false;
            };
            let name = last.ident.to_string();
            match &last.arguments {
                syn::PathArguments::None => PLAIN.contains(&name.as_str()),
                syn::PathArguments::AngleBracketed(arguments) => {
                    name == "PhantomData"
                        || CONTAINERS.contains(&name.as_str())
                            && arguments.args.iter().all(|argument| match argument {
                                syn::GenericArgument::Type(ty) => is_plain(ty),
                                _ => false,
                            })
                }
                syn::PathArguments::Parenthesized(_) => false,
            }
        }
        _ => false,
    }
}
