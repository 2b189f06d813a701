package coretest

// ScriptedRefusal is the error of [Refusal].
type ScriptedRefusal = refusal
