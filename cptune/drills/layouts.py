"""Other axes: the layout that is best for its context groups alone, and not as a whole."""

from __future__ import annotations

from cptune.domain.candidate import Candidate
from cptune.domain.layout import ParallelLayout
from cptune.drills.finding import Finding
from cptune.drills.reports import measured
from cptune.drills.searching import search

#: Two ranks exchange less than four, and a pipeline of two stages stands idle for it.
_LOCAL = Candidate(layout=ParallelLayout(cp=2, pp=2), stages=1)
_WHOLE = Candidate(layout=ParallelLayout(cp=4), stages=3)
_LOCAL_S, _LOCAL_CP_S, _LOCAL_PP_S = 0.150, 0.004, 0.060
_WHOLE_S, _WHOLE_CP_S = 0.100, 0.012


def judge(_: object) -> Finding:
    """The choice must take the complete recipe that is faster on as many ranks."""
    whole = measured(_WHOLE, step_s=_WHOLE_S, exposed_s={"cp": _WHOLE_CP_S})
    bubbled = measured(_LOCAL, step_s=_LOCAL_S, exposed_s={"cp": _LOCAL_CP_S, "pp": _LOCAL_PP_S})
    sound = measured(_LOCAL, step_s=_LOCAL_S - _LOCAL_PP_S, exposed_s={"cp": _LOCAL_CP_S})
    found = search([(_LOCAL, bubbled), (_WHOLE, whole)])
    control = search([(_LOCAL, sound), (_WHOLE, whole)])
    return Finding(
        refused=found.chosen == _WHOLE,
        said=f"{_LOCAL.describe()}: {found.reason(_LOCAL)}",
        controls={
            "its context groups expose less": bubbled.cp_exposed_s < whole.cp_exposed_s,
            "both have as many ranks": _LOCAL.layout.world_size == _WHOLE.layout.world_size,
            "without its bubble it is chosen": control.chosen == _LOCAL,
        },
        figures={
            "local_cp_exposed_s": bubbled.cp_exposed_s,
            "whole_cp_exposed_s": whole.cp_exposed_s,
            "local_tokens_per_s": bubbled.tokens_per_s,
            "whole_tokens_per_s": whole.tokens_per_s,
        },
    )
