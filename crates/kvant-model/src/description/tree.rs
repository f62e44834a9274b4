//! One declaration of every block, for the description and for what backends compile it to.
//!
//! A block is generic over what stands for its [`Weights`]: a description has tensors by name ([`Named`]), a compiled model has a
//! backend's products and norms in the same places. [`tree!`] declares a block and [`Lower`] walks it, field by field, so a new
//! field of a mixer is one line that every backend sees:
//!
//! ```
//! use kvant_model::description::{Attention, Named, Weights};
//!
//! fn query_heads<W: Weights>(of: &Attention<W>) -> usize {
//!     of.heads / of.kv_heads
//! }
//! # let _ = query_heads::<Named>;
//! ```
//!
//! Parts that a backend may keep in a form of its own, such as the matrices of latent attention, are types of [`Weights`] too.

use super::{
    Activation, ClampedSwiglu, Convolution, DecayRate, DeltaDims, ExpertGroups, GateOrder, GatedNorm,
    LatentHeads, Linear, Mamba2Dims, Norm, NormPlace, OutputGate, QueryGain, Renormalise, RopeId,
    RouterScore, TensorRef, Vector,
};
use kvant_cache::{KvSlot, StateSlot};

/// What stands for the weights of a tree of blocks.
pub trait Weights {
    /// A linear layer.
    type Linear;
    /// A normalisation.
    type Norm;
    /// A list of numbers.
    type Vector;
    /// A table whose rows are looked up.
    type Table;
    /// The matrices that each head of latent attention has for itself.
    type LatentHeads;
    /// A causal convolution.
    type Convolution;
    /// Rates of decay.
    type Decay;
    /// A norm beside a gate.
    type GatedNorm;
}

/// Weights by the names of their tensors: a description.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Named {}

impl Weights for Named {
    type Linear = Linear;
    type Norm = Norm;
    type Vector = Vector;
    type Table = TensorRef;
    type LatentHeads = LatentHeads;
    type Convolution = Convolution;
    type Decay = DecayRate;
    type GatedNorm = GatedNorm;
}

/// Makes a backend's weights of those that a description names.
pub trait Lower<'d> {
    /// What it makes.
    type To: Weights;
    /// Why it could not.
    type Error;

    /// A linear layer.
    fn linear(&mut self, of: &'d Linear) -> Result<<Self::To as Weights>::Linear, Self::Error>;
    /// A normalisation.
    fn norm(&mut self, of: &'d Norm) -> Result<<Self::To as Weights>::Norm, Self::Error>;
    /// A list of numbers.
    fn vector(&mut self, of: &'d Vector) -> Result<<Self::To as Weights>::Vector, Self::Error>;
    /// A table whose rows are looked up.
    fn table(&mut self, of: &'d TensorRef) -> Result<<Self::To as Weights>::Table, Self::Error>;
    /// The matrices of latent attention's heads.
    fn latent_heads(
        &mut self,
        of: &'d LatentHeads,
    ) -> Result<<Self::To as Weights>::LatentHeads, Self::Error>;
    /// A convolution.
    fn convolution(&mut self, of: &'d Convolution)
    -> Result<<Self::To as Weights>::Convolution, Self::Error>;
    /// Rates of decay.
    fn decay(&mut self, of: &'d DecayRate) -> Result<<Self::To as Weights>::Decay, Self::Error>;
    /// A norm beside a gate.
    fn gated_norm(&mut self, of: &'d GatedNorm) -> Result<<Self::To as Weights>::GatedNorm, Self::Error>;
}

/// A part of a description that can be made anew over other weights.
pub trait Node<'d, L: Lower<'d>> {
    /// The same over the weights that `L` makes.
    type Lowered;

    /// Makes every weight in it, in the order of its fields.
    fn lower(&'d self, to: &mut L) -> Result<Self::Lowered, L::Error>;
}

impl<'d, L: Lower<'d>, T: Node<'d, L>> Node<'d, L> for Option<T> {
    type Lowered = Option<T::Lowered>;

    fn lower(&'d self, to: &mut L) -> Result<Self::Lowered, L::Error> {
        self.as_ref().map(|of| of.lower(to)).transpose()
    }
}

impl<'d, L: Lower<'d>, T: Node<'d, L>> Node<'d, L> for Vec<T> {
    type Lowered = Vec<T::Lowered>;

    fn lower(&'d self, to: &mut L) -> Result<Self::Lowered, L::Error> {
        self.iter().map(|of| of.lower(to)).collect()
    }
}

impl<'d, L: Lower<'d>, T: Node<'d, L>> Node<'d, L> for Box<T> {
    type Lowered = Box<T::Lowered>;

    fn lower(&'d self, to: &mut L) -> Result<Self::Lowered, L::Error> {
        (**self).lower(to).map(Box::new)
    }
}

impl<'d, L: Lower<'d>, A: Node<'d, L>, B: Node<'d, L>> Node<'d, L> for (A, B) {
    type Lowered = (A::Lowered, B::Lowered);

    fn lower(&'d self, to: &mut L) -> Result<Self::Lowered, L::Error> {
        Ok((self.0.lower(to)?, self.1.lower(to)?))
    }
}

macro_rules! weights {
    ($($part:ty => $kind:ident, $make:ident);* $(;)?) => {$(
        impl<'d, L: Lower<'d>> Node<'d, L> for $part {
            type Lowered = <L::To as Weights>::$kind;

            fn lower(&'d self, to: &mut L) -> Result<Self::Lowered, L::Error> {
                to.$make(self)
            }
        }
    )*};
}

weights! {
    Linear => Linear, linear;
    Norm => Norm, norm;
    Vector => Vector, vector;
    TensorRef => Table, table;
    LatentHeads => LatentHeads, latent_heads;
    Convolution => Convolution, convolution;
    DecayRate => Decay, decay;
    GatedNorm => GatedNorm, gated_norm;
}

macro_rules! plain {
    ($($plain:ty),* $(,)?) => {$(
        impl<'d, L: Lower<'d>> Node<'d, L> for $plain {
            type Lowered = $plain;

            fn lower(&'d self, _: &mut L) -> Result<Self::Lowered, L::Error> {
                Ok(*self)
            }
        }
    )*};
}

plain!(
    bool,
    f32,
    usize,
    [f32; 5],
    Activation,
    ClampedSwiglu,
    DeltaDims,
    ExpertGroups,
    GateOrder,
    KvSlot,
    Mamba2Dims,
    NormPlace,
    OutputGate,
    QueryGain,
    Renormalise,
    RopeId,
    RouterScore,
    StateSlot,
);

/// Declares blocks over [`Weights`] `W`, as structures and enumerations are declared, and how they are walked, copied, compared and
/// printed.
macro_rules! tree {
    () => {};
    (
        $(#[$meta:meta])*
        pub struct $Name:ident { $($(#[$about:meta])* pub $field:ident: $of:ty,)* }
        $($rest:tt)*
    ) => {
        $(#[$meta])*
        pub struct $Name<W: $crate::description::Weights = $crate::description::Named> {
            $($(#[$about])* pub $field: $of,)*
        }

        impl<'d, L: $crate::description::Lower<'d>> $crate::description::Node<'d, L> for $Name {
            type Lowered = $Name<L::To>;

            fn lower(&'d self, to: &mut L) -> Result<Self::Lowered, L::Error> {
                Ok($Name { $($field: $crate::description::Node::lower(&self.$field, to)?,)* })
            }
        }

        impl Clone for $Name {
            fn clone(&self) -> Self {
                Self { $($field: self.$field.clone(),)* }
            }
        }

        impl PartialEq for $Name {
            fn eq(&self, other: &Self) -> bool {
                $(self.$field == other.$field)&&*
            }
        }

        impl std::fmt::Debug for $Name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($Name))$(.field(stringify!($field), &self.$field))*.finish()
            }
        }

        tree! { $($rest)* }
    };
    (
        $(#[$meta:meta])*
        pub enum $Name:ident { $(
            $(#[$about:meta])*
            $Kind:ident $(($one:ty))? $({ $($(#[$part:meta])* $field:ident: $of:ty,)* })?,
        )* }
        $($rest:tt)*
    ) => {
        $(#[$meta])*
        pub enum $Name<W: $crate::description::Weights = $crate::description::Named> { $(
            $(#[$about])*
            $Kind $(($one))? $({ $($(#[$part])* $field: $of,)* })?,
        )* }

        impl<'d, L: $crate::description::Lower<'d>> $crate::description::Node<'d, L> for $Name {
            type Lowered = $Name<L::To>;

            fn lower(&'d self, to: &mut L) -> Result<Self::Lowered, L::Error> {
                Ok(match self { $(
                    tree!(@pattern $Name::$Kind, of $(, $one)? $({ $($field)* })?) =>
                        tree!(@lowered $Name::$Kind, of, to $(, $one)? $({ $($field)* })?),
                )* })
            }
        }

        impl Clone for $Name {
            fn clone(&self) -> Self {
                match self { $(
                    tree!(@pattern $Name::$Kind, of $(, $one)? $({ $($field)* })?) =>
                        tree!(@cloned $Name::$Kind, of $(, $one)? $({ $($field)* })?),
                )* }
            }
        }

        impl PartialEq for $Name {
            fn eq(&self, other: &Self) -> bool {
                match (self, other) {
                    $((tree!(@pattern $Name::$Kind, of $(, $one)? $({ $($field)* })?), _) => {
                        let left = tree!(@parts of $(, $one)? $({ $($field)* })?);
                        matches!(
                            other,
                            tree!(@pattern $Name::$Kind, of $(, $one)? $({ $($field)* })?)
                                if left == tree!(@parts of $(, $one)? $({ $($field)* })?)
                        )
                    })*
                }
            }
        }

        impl std::fmt::Debug for $Name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                match self { $(
                    tree!(@pattern $Name::$Kind, of $(, $one)? $({ $($field)* })?) => {
                        let parts = tree!(@parts of $(, $one)? $({ $($field)* })?);
                        f.debug_tuple(stringify!($Kind)).field(&parts).finish()
                    }
                )* }
            }
        }

        tree! { $($rest)* }
    };
    (@pattern $Name:ident::$Kind:ident, $of:ident, $one:ty) => { $Name::$Kind($of) };
    (@pattern $Name:ident::$Kind:ident, $of:ident { $($field:ident)* }) => { $Name::$Kind { $($field),* } };
    (@parts $of:ident, $one:ty) => { $of };
    (@parts $of:ident { $($field:ident)* }) => { ($($field,)*) };
    (@lowered $Name:ident::$Kind:ident, $of:ident, $to:ident, $one:ty) => { $Name::$Kind($crate::description::Node::lower($of, $to)?) };
    (@lowered $Name:ident::$Kind:ident, $of:ident, $to:ident { $($field:ident)* }) => {
        $Name::$Kind { $($field: $crate::description::Node::lower($field, $to)?),* }
    };
    (@cloned $Name:ident::$Kind:ident, $of:ident, $one:ty) => { $Name::$Kind($of.clone()) };
    (@cloned $Name:ident::$Kind:ident, $of:ident { $($field:ident)* }) => {
        $Name::$Kind { $($field: $field.clone()),* }
    };
}

pub(crate) use tree;
