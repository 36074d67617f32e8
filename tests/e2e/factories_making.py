"""Contexts of concepts in latents: on a latent's page, a concept's page, and the page of SAEs."""

import dataclasses

from app import contexts as c

XSS = "<script>alert(1)</script>"
ROWS = tuple(c.MembershipRow(f"{name} {XSS}", "/x", 1 - k / 9, f"{1 - k / 9:.2f}") for k, name in enumerate("abcdefgh"))
TO_MAKE = c.MakingView(
    live=False, share=0.0, message="", error="", action="/saes/ab/concepts", hidden=(("concept", XSS),),
    button="Find its latents", about="24 probes of 1 concept.", cancel="", probes="24",
)  # fmt: skip
MAKING = dataclasses.replace(TO_MAKE, live=True, share=0.4, message=f"probe 9 of 24 {XSS}", button="", cancel="/cancel")
FAILED = dataclasses.replace(TO_MAKE, error=f"It failed. {XSS}")
MADE = dataclasses.replace(TO_MAKE, button="", about="", probes="")
OF_LATENT = (
    c.LatentConceptsView(ROWS, ROWS[:3], "It belongs to 11 of 235 concepts."),
    c.LatentConceptsView(empty=f"It belongs to none of them. {XSS}"),
)
OF_CONCEPT = (
    c.ConceptLatentsView("world-mlp-4", ROWS, "107 of 2,048 latents belong to it.", "", "", MADE),
    c.ConceptLatentsView(XSS, ROWS, "It has some.", f"The concept has changed. {XSS}", "", TO_MAKE),
    c.ConceptLatentsView("other", (), "", "", "Its memberships are not made yet.", MAKING),
)
OF_SAES = tuple(
    c.SaeConceptsView(XSS, "Memberships in 235 concepts.", making) for making in (TO_MAKE, MAKING, FAILED, MADE)
)
