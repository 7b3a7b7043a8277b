//! The implementation of `Module` that the derive macro generates.

use proc_macro2::TokenStream;
use quote::{format_ident, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Data, DeriveInput, Fields, GenericParam, Index, Path, Result, parse_quote};

use crate::field::{Child, Kind};

/// A struct, or a variant of an enum.
struct Shape<'a> {
    /// `Self` or `Self::Variant`.
    constructor: TokenStream,
    /// The name of each field in a pattern: the field's name or its index.
    members: Vec<TokenStream>,
    children: Vec<Child<'a>>,
}

impl<'a> Shape<'a> {
    fn of(constructor: TokenStream, fields: &'a Fields) -> Result<Self> {
        let alone = matches!(fields, Fields::Unnamed(_)) && fields.len() == 1;
        let mut shape = Self {
            constructor,
            members: Vec::new(),
            children: Vec::new(),
        };
        let mut errors: Option<syn::Error> = None;
        for (index, field) in fields.iter().enumerate() {
            shape.members.push(match &field.ident {
                Some(name) => quote!(#name),
                None => {
                    let index = Index::from(index);
                    quote!(#index)
                }
            });
            match (Child::of(field, index, alone), &mut errors) {
                (Ok(child), _) => shape.children.push(child),
                (Err(error), Some(errors)) => errors.combine(error),
                (Err(error), none) => *none = Some(error),
            }
        }
        errors.map_or(Ok(shape), Err)
    }

    /// A match arm that binds the fields in use to `__0`, `__1`, … and runs the code that `each`
    /// returns for each of them.
    fn arm(&self, each: impl Fn(&Child<'_>, &syn::Ident) -> TokenStream) -> TokenStream {
        let Self {
            constructor,
            members,
            ..
        } = self;
        let mut bindings = Vec::new();
        let mut body = Vec::new();
        for (index, child) in self.children.iter().enumerate() {
            let name = format_ident!("__{index}");
            let used = each(child, &name);
            bindings.push(match used.is_empty() {
                true => quote!(_),
                false => quote!(#name),
            });
            body.push(used);
        }
        quote!(#constructor { #(#members: #bindings),* } => { #(#body)* })
    }
}

pub(crate) fn expand(input: &DeriveInput) -> Result<TokenStream> {
    let nn = place(input)?;
    let shapes = match &input.data {
        Data::Struct(data) => vec![Shape::of(quote!(Self), &data.fields)?],
        Data::Enum(data) => data
            .variants
            .iter()
            .map(|variant| {
                let name = &variant.ident;
                Shape::of(quote!(Self::#name), &variant.fields)
            })
            .collect::<Result<_>>()?,
        Data::Union(_) => {
            let message = "a union cannot be a module: use a struct or an enum";
            return Err(syn::Error::new_spanned(&input.ident, message));
        }
    };
    let matched = |each: &dyn Fn(&Child<'_>, &syn::Ident) -> TokenStream| {
        let arms = shapes.iter().map(|shape| shape.arm(each));
        match shapes.is_empty() {
            true => quote!(match *self {}),
            false => quote!(match self { #(#arms)* }),
        }
    };
    let visits = matched(&|child, name| visit(&nn, child, name, "visit"));
    let changes = matched(&|child, name| visit(&nn, child, name, "visit_mut"));
    let lists = matched(&|child, name| list(&nn, child, name));

    let name = &input.ident;
    let mut generics = input.generics.clone();
    for param in &input.generics.params {
        let GenericParam::Type(param) = param else {
            continue;
        };
        let ident = &param.ident;
        let mut children = shapes.iter().flat_map(|shape| &shape.children);
        if children.any(|child| child.is_module_of(ident)) {
            let bound = parse_quote!(#ident: #nn::Module);
            generics.make_where_clause().predicates.push(bound);
        }
    }
    let is_constant = |param: &GenericParam| matches!(param, GenericParam::Const(_));
    let known = match input.generics.params.iter().all(is_constant) {
        true => quote!(#nn::known_type!();),
        false => TokenStream::new(),
    };
    let (impl_generics, ty_generics, where_clause) = generics.split_for_impl();
    Ok(quote! {
        #[automatically_derived]
        #[allow(unreachable_code, unused_mut, unused_qualifications)]
        impl #impl_generics #nn::Module for #name #ty_generics #where_clause {
            fn visit(&self, __path: &mut #nn::Path, __visitor: &mut dyn #nn::Visit) -> #nn::mlx_core::Result<()> {
                #visits
                ::core::result::Result::Ok(())
            }

            fn visit_mut(&mut self, __path: &mut #nn::Path, __visitor: &mut dyn #nn::VisitMut) -> #nn::mlx_core::Result<()> {
                #nn::VisitMut::module(__visitor, __path, self)?;
                #changes
                ::core::result::Result::Ok(())
            }

            fn children(&self) -> ::std::vec::Vec<(::std::string::String, &dyn #nn::Module)> {
                let mut __children = ::std::vec::Vec::new();
                #lists
                __children
            }

            #known
        }
    })
}

/// The path of the crate `mlx_nn`: that of `#[module(crate = path)]`, or `::mlx_nn`.
fn place(input: &DeriveInput) -> Result<Path> {
    let mut place: Path = parse_quote!(::mlx_nn);
    for attribute in input.attrs.iter().filter(|a| a.path().is_ident("module")) {
        attribute.parse_nested_meta(|meta| {
            if !meta.path.is_ident("crate") {
                return Err(meta.error("expected `crate = path`"));
            }
            place = meta.value()?.parse()?;
            Ok(())
        })?;
    }
    Ok(place)
}

/// The call that visits a field. Compiler errors in it point at the field's type.
fn visit(nn: &Path, child: &Child<'_>, field: &syn::Ident, method: &str) -> TokenStream {
    let (ty, method) = (child.ty, format_ident!("{method}"));
    let span = ty.span();
    match &child.kind {
        Kind::Skipped => TokenStream::new(),
        Kind::Module(None) => {
            quote_spanned!(span=> <#ty as #nn::Module>::#method(#field, __path, __visitor)?;)
        }
        Kind::Module(Some(name)) => quote_spanned! {span=>
            __path.scoped(#name, |__path| <#ty as #nn::Module>::#method(#field, __path, __visitor))?;
        },
        Kind::State(name) => quote_spanned! {span=>
            __path.scoped(#name, |__path| <#ty as #nn::module::Buffers>::#method(#field, __path, __visitor))?;
        },
    }
}

/// The call that adds a field to the children.
fn list(nn: &Path, child: &Child<'_>, field: &syn::Ident) -> TokenStream {
    let ty = child.ty;
    let span = ty.span();
    match &child.kind {
        Kind::Skipped | Kind::State(_) => TokenStream::new(),
        Kind::Module(None) => quote_spanned! {span=>
            __children.extend(<#ty as #nn::Module>::children(#field));
        },
        Kind::Module(Some(name)) => quote_spanned! {span=>
            <#ty as #nn::Module>::list(#field, #name, &mut __children);
        },
    }
}
