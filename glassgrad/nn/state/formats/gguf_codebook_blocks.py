"""Dequantise GGUF blocks with codebooks of eight or four weights per entry. In, out: as in gguf_blocks.py.

A point of a codebook has 8 weights of 3 levels, or 4 of 8. The levels of a point, read as digits with the lowest first,
are a number. A codebook is a set of such numbers in ascending order, stored as a bit set, deflated, as base-85 text. A
block names points by their index in the book. Signs and scales are stored separately; books with signed levels are
shifted by an eighth, up or down.
"""

from __future__ import annotations

import base64
import zlib
from functools import cache
from typing import NamedTuple

from glassgrad.compiler.graph import DType, dtypes
from glassgrad.nn.state.formats.gguf_blocks import SUPER, Blocks, fields, half, spread
from glassgrad.tensor.formulas import take
from glassgrad.tensor.jit_access import computed_from
from glassgrad.tensor.tensor import Tensor


class Codebook(NamedTuple):
    """The points of a codebook, each with `weights` weights of one of `levels`; `text` encodes which points
    there are."""
    levels: tuple[int, ...]
    weights: int
    text: str

    def look_up(self, indices: Tensor) -> Tensor:
        """(n, k) indices in the book -> (n, k * weights) float32"""
        points = Tensor(_points(self), dtype=dtypes.float32, device=indices.device)
        found = take(points.uop, 0, indices.cast(dtypes.int32).uop)       # the bit width rules out larger indices
        return computed_from(points, found, indices).reshape(len(indices), -1)


@cache
def _points(book: Codebook) -> list[list[int]]:
    chosen = int.from_bytes(zlib.decompress(base64.b85decode(book.text)), "little")
    base = len(book.levels)
    return [[book.levels[number // base ** i % base] for i in range(book.weights)]
            for number in range(base ** book.weights) if chosen >> number & 1]


# -- pieces ----------------------------------------------------------------------------------------------------------
def _as(data: Tensor, dtype: DType) -> Tensor:
    """Read bytes as wider little-endian integers."""
    return data.bitcast(dtype).cast(dtypes.int32 if dtype is dtypes.uint16 else dtype)


def _indices(low: Tensor, high: Tensor) -> Tensor:
    """Return indices into a book, from their lower 8 bits and the upper ones."""
    return low.cast(dtypes.int32) | (high.cast(dtypes.int32) << 8)


def _signs(bits: Tensor) -> Tensor:
    """(n, k) bytes -> (n, 8 k): -1 where a bit is set, else 1"""
    return 1 - 2 * fields(bits.cast(dtypes.uint8), 1, 8).cast(dtypes.float32)


def _even_signs(seven: Tensor) -> Tensor:
    """Return `_signs` of 7 bits each; the eighth bit is their parity, so that the number of set bits is even."""
    seven = seven.cast(dtypes.uint8)
    folded = seven ^ (seven >> 4)
    folded = folded ^ (folded >> 2)
    return _signs(seven | (((folded ^ (folded >> 1)) & 1) << 7))


def _scaled(d: Tensor, scales: Tensor, weights: Tensor) -> Tensor:
    return spread(d * scales, weights).reshape(-1, SUPER)


def _midpoints(scales: Tensor, step: float) -> Tensor:
    """Return the values of 4-bit scales: the middle of each step."""
    return (scales.cast(dtypes.float32) + 0.5) * step


def _odd(scales: Tensor) -> Tensor:
    return scales.cast(dtypes.float32) * 2 + 1


# -- 1 bit and a half: weights of three levels, shifted by an eighth -------------------------------------------------
_SHIFT = 0.125
_ONE = Codebook((-1, 0, 1), 8, (
    "c-k#eK}(!R7=CxE;dM-9V?RN1diSfb(^(PgE$L;EU0C#DLh=VZ*|bQ>IZZw%yXlwN6ha`hG?#HO$v6$G@ldv(umMk2dT8mb2WdTox*h^v8VtnDuD"
    "#8?@Vw9Syw7v(LR2?w<}y}3b9YJG^C&5*&qs>Nl?x;NhAB!%0hRecnsm$a2YwJ@;QqccSPG~@n#@N5uBY$^gNY22s7}?HYgoxmY#Y+!Ajh1yxWA4"
    "l1OzVO1-XRyWBes^wA;LAoBq<x!%nuPhFWp9`{&R@7DG%<XIwD^Is3Q$Jf@<B<<hd(0^?jzIHG8vQn*?-$Ub(LsHW&@kYNcQ%|}dP%c;av8KJU^m"
    "WiJv*28-WD<$YEG%#}+D!ES;XeDuFD(VlG#i@A4$V;H%7rH52w&LB_pg1xSvl=L<CZ@9?{WdkSxbxSuMq|l64F4MqT|O(RS}O@H(bLXvHn!_Ontv"
    "Sw2GXTKiD_6XGLxujp0!)qyF+V=7Bv?g3oFy??D1-6?{(2le%HQrc>Le(m#@Cb_P%)g$;r#{<KcsUbe#9?p_<1{H>jE?+1SCIq;Fwj@yPMjA_U90"
    "?}vdY$)D1%>fQq-z{36HBT$I&mG*v%J#A~V%aSj@pZtCEAg}V1eou`2@uUxU_YQ=)6;l3U7EjmAKr#y2F0kdO91c}@u6ikZ68>90+)KINV7E3oVy"
    "0wcNC7Qg*Gnz$6Ckekcj5w;yQl$8BcV}uIeIA*;9XR~L2uzcrHYS+2)y-rqrtcg6e{stpn$cM#il(dTBx(R&0u-;P1DmAvG}u@dX;b%ns9v~6p49"
    "X^c}lqEMlIFjzJBbrp$X4T{{D_p5YV7e^~xM<^E7<_56qcAaL=FI+lT|4v2#Y&dpW2-Egd@Fdf5G@Dheeu*|v(bMFD;1sQ1"))


def _shifted(indices: Tensor, down: Tensor) -> Tensor:
    """The points, shifted down or up: (n, k) indices, (n, parts) -> (n, 256)"""
    shifts = (down == 0).where(_SHIFT, -_SHIFT).unsqueeze(-1)
    return (_ONE.look_up(indices).reshape(len(indices), down.shape[1], -1) + shifts).reshape(-1, SUPER)


def _iq1_s(b: Tensor) -> Tensor:         # d (2), lower bits (32), for each 32 weights 4 x 3 upper bits, scale, shift
    rest = _as(b[:, 34:], dtypes.uint16)
    indices = _indices(b[:, 2:34], fields(rest, 3, 4))
    return _scaled(half(b[:, :2]), _odd((rest >> 12) & 7), _shifted(indices, rest >> 15))


def _iq1_m(b: Tensor) -> Tensor:         # lower bits (32), for each 8 weights 3 upper bits and a shift (16), scales (8)
    rest = fields(b[:, 32:48], 4, 2)
    scales = _as(b[:, 48:], dtypes.uint16)                      # 4 x 3 bits, and 4 bits of d, in each
    d = (fields(scales >> 12, 4, 1) << (Tensor.arange(4, device=b.device) * 4)).sum(1, keepdim=True)
    d = d.cast(dtypes.uint16).bitcast(dtypes.float16).cast(dtypes.float32)
    return _scaled(d, _odd(fields(scales, 3, 4)), _shifted(_indices(b[:, :32], rest & 7), rest >> 3))


# -- 2 bits and some: three levels and signs -------------------------------------------------------------------------
_LEVELS = (8, 25, 43)
_TWO_256 = Codebook(_LEVELS, 8, (
    "c-nPRORB^$43oj#tB`je2YP^R=KfcCw)5@K5e=lV<VbEmf91ogR%p3E0BR^O#16P=^@J3)+t0mx___f>P^zDolEn6;is&dxI!#Zg_{KuzkVd4Mw`"
    "?l*l~*(z5~c8Qj-!-YZym34v`$TQ4<4*~)dpL;rq|+W4irx`d$&)6^vGb7UkLBrzcFbHqcf>sMFwRxr;MTG;*}m%Qlby-@@TSk)X7om@@#uKQIjU"
    "UWQ&$2&y}*gX5TV=Bc|Cuh1wL(2Kn3A3Yj<N%;gblzhT7_jxp@MF=lA5st5R^Hl2J=^JV`E{Z0D^#$6R7"))
_TWO_512 = Codebook(_LEVELS, 8, (
    "c-mc2TdsvL2pkgnkBRPwCicH3cK=&BJX-bM<{ZTW!^|+oxJIi-qkD|rsuaR~iB<*?x~C4>8J0pJW<V>X*vo#SY&(-c)w(<-fCU6QVt|)*=>oJ=N8"
    "h~B3mmYKBw*Y)Ca<s*uvOak7T*la5<g=kAh?T96(5+bR(Mt@J=L5^n!u1sF+~=p=RjVCGbM+vDH*59tF!>kC`)-u3GzO}jM8X_r-*1ytubG*&a^i"
    "qGs?p-do}D8x2NWXU?%O)=7t88q040RdJ=Ak)9T+$YBcFD31^6BC_W+mG1}iEA-T}Oj@u6-pQ1yByIl9%`W3mW#F%j~<yh(N0zSL~oH^Zy%}}tQx"
    "4=M73#xoc?jNErTmD?iDs40;(&MG>YYMNuDE=SK;cc#9vM%q_=>7msuqjC"))
_TWO_1024 = Codebook(_LEVELS, 8, (
    "c-n1JU5W-F3~NE(E9iYHjPDBe{#V(wI=kPpE5rQ7#3X8F%Z9aF@G^(h-0EI3Em0|W3^QwctZ7zp0a8G#rYWS&oF&YfEj@sgh^u5FBBgC>LAkBEEt"
    "arKv-X}c)kMD5E9g)N*35uFS6j&;COQ!QC2=T0oAzp}=fs8f?3xctXeG?g^dQAA!2(KVP=j1x!<Qgx@l7F)Pu!TMd$m>{ZzEray(N$AzRb24)#*U"
    "9zYZZF^+2!@EVQ9?ARiEH!J<ErE8usn4?()-BQhW*1pE<<S|Z6aT82aQO}QP4+el6zUY~*z7~Sl6pK?p!Q_DMIhH4w7?joIO9P^#Dw9CRS7mu8OB"
    "C|vDii4FoWN_zK9m?6y$}qXC*pyH_2f!)+bXep&HXz~CYasM7Fd3(JhmM~KIbkHJ7yU4;E692~{FNElHOf~Fzm+TBn!W(JyjC6"))


def _iq2_xxs(b: Tensor) -> Tensor:       # d (2), for each 32 weights: indices (4), 4 x 7 signs and a scale (4 bits) (4)
    parts = b[:, 2:].reshape(-1, 8, 8)
    rest = _as(parts[:, :, 4:].reshape(-1, 32), dtypes.uint32)
    weights = _TWO_256.look_up(parts[:, :, :4].reshape(-1, 32)) * _even_signs(fields(rest, 7, 4))
    return _scaled(half(b[:, :2]), _midpoints(rest >> 28, 0.25), weights)


def _iq2_xs(b: Tensor) -> Tensor:        # d (2), for each 8 weights an index of 9 bits and 7 signs (64), scales (8)
    rest = _as(b[:, 2:66], dtypes.uint16)
    weights = _TWO_512.look_up(rest & 511) * _even_signs(rest >> 9)
    return _scaled(half(b[:, :2]), _midpoints(fields(b[:, 66:], 4, 2), 0.25), weights)


def _iq2_s(b: Tensor) -> Tensor:         # d (2), lower bits (32), signs (32), upper bits (8), scales (8)
    weights = _TWO_1024.look_up(_indices(b[:, 2:34], fields(b[:, 66:74], 2, 4))) * _signs(b[:, 34:66])
    return _scaled(half(b[:, :2]), _midpoints(fields(b[:, 74:], 4, 2), 0.25), weights)


# -- 3 bits and some: eight levels and signs -------------------------------------------------------------------------
_THREE_256 = Codebook((4, 12, 20, 28, 36, 44, 52, 62), 4, (
    "c-l=-F%H5o3_M%0RAmZ7_lgPeigaLyA4Q!IuVCbv_?)J2Rn;aw-<^~BWtxCXwzFx0%xW)eST<YW5KL&L;j#hAAHoX-c)&}FY<X@1m|7IGsjrX>q7"
    "@bAuHrcP3L2_`6x)_>^v5;&o?@Fdagv_Uo9H*utGOGEJ93R6P|L2rgx{U}Y-UnrS3sKYtPIbF!WdDS7|dsT<9UQCqzhJe8+4kK5km%XvHjm=J(sM"
    "gqk-e3v^zjTJayVggoDWMJzTWE4a0T)3l-9P!ydlNePrBA?Xny*@kmBo4W|8$?wEo20v5Uy_5"))
_THREE_512 = Codebook((1, 3, 5, 7, 9, 11, 13, 15), 4, (
    "c-k#d!AiqG5PdVu!e&pqA>uXNMyUCUt<-~hDT4SrX{pfmmf{D9Rs{Q#&TgE;z`Qr}-rMBob#A|%IbF{W(Id*&Lkwq!%0~0(%@Ao{OU0lD_x2OXCI"
    "^OquXIKLt}o^pYnG?L6&oz+9HeSVPSrN(A}t!YmF^Xmp*3Qy-5G8(e|b5Y-VC?q(AA>+32wuC)HmEXp@c1}PT|h83}iuXSwt^ePGkv?U+Lf3a_=1"
    "ov?9@{igP&9v4ypFswx3&TJZ@M2_=SuX>*z&qp%+CoXl)ge8!drA@5Agyn!FG+()?*sDei}n1QT95(J|p-wR7#Aht{0!Hx!aZfy;cl!bD4D3uqR("
    "zW`GY5;6>@R{_|3X$jRqNR^eu)^e<Ll^vCYlKPU1;QQ+o$IB(hKom+bHx0SXmXXwyZnVo8~6jd#wQ>"))


def _iq3_xxs(b: Tensor) -> Tensor:       # d (2), indices (64), for each 32 weights 4 x 7 signs and a scale (4 bits) (4)
    rest = _as(b[:, 66:], dtypes.uint32)
    weights = _THREE_256.look_up(b[:, 2:66]) * _even_signs(fields(rest, 7, 4))
    return _scaled(half(b[:, :2]), _midpoints(rest >> 28, 0.5), weights)


def _iq3_s(b: Tensor) -> Tensor:         # d (2), lower bits (64), ninth bits (8), signs (32), scales (4)
    weights = _THREE_512.look_up(_indices(b[:, 2:66], fields(b[:, 66:74], 1, 8))) * _signs(b[:, 74:106])
    return _scaled(half(b[:, :2]), _odd(fields(b[:, 106:], 4, 2)), weights)


BOOK_BLOCKS: dict[int, Blocks] = {       # by ggml's number
    16: Blocks("IQ2_XXS", SUPER, 66, _iq2_xxs), 17: Blocks("IQ2_XS", SUPER, 74, _iq2_xs),
    18: Blocks("IQ3_XXS", SUPER, 98, _iq3_xxs), 19: Blocks("IQ1_S", SUPER, 50, _iq1_s),
    21: Blocks("IQ3_S", SUPER, 110, _iq3_s), 22: Blocks("IQ2_S", SUPER, 82, _iq2_s),
    29: Blocks("IQ1_M", SUPER, 56, _iq1_m),
}
