package admission

import "testing"

// A kind becomes a segment of a path and back. A kind in another notation has no segment.
func TestKindsInPaths(t *testing.T) {
	t.Parallel()

	for kind, want := range map[string]string{
		"Deployment": "deployment", "StatefulSet": "stateful.set", "HTTPRoute": "h.t.t.p.route", "V1": "v1", "A2b": "a2b",
		"widget": "", "My-Kind": "", "": "", "Ä": "",
	} {
		segment := kindSegment(kind)
		if segment != want {
			t.Errorf("%s: segment %q, want %q", kind, segment, want)
		}
		if back := kindOf(segment); want != "" && back != kind {
			t.Errorf("%s: %q is read as %q", kind, segment, back)
		}
	}

	for _, segment := range []string{"", ".", "a.", ".a", "a..b", "A", "a-b", "1a", "a.1", "ä"} {
		if kind := kindOf(segment); kind != "" {
			t.Errorf("%q is read as %q, want no kind", segment, kind)
		}
	}
}
