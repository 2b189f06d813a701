package xfcc_test

import (
	"strings"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/listener/internal/xfcc"
)

// FuzzParse looks for a header that takes the parser out of its bounds, or that changes the element
// which the gateway appends to it.
func FuzzParse(f *testing.F) {
	cert := escape(newCertificate(f, "seed"))
	appended := `Hash=1;Cert="gateway";Subject="CN=a\"b\\,c";URI=`
	for _, seed := range []string{
		"", ",", ";", "=", `"`, `\`, `Subject="`, `Subject="\`, `Subject="\"`, `Hash=1;Cert="` + cert + `";Subject="CN=a\, b";URI=`,
		`By=a;By=b;Hash=;Subject="";URI=c;DNS=d,By=e`, `Cert="x";Subject="Cert=\"y\""`, strings.Repeat("By=,", 20), "Hash=1\nHash=2",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, header string) {
		lines := strings.Split(header, "\n")
		elements, err := xfcc.Parse(lines)
		if err == nil && (len(elements) == 0 || len(elements) > xfcc.MaxElements || len(header)-len(lines)+1 > xfcc.MaxSize) {
			t.Errorf("%d elements of %d bytes", len(elements), len(header))
		}
		for _, element := range elements {
			_, _, _ = element.Certificates()
		}
		elements, err = xfcc.Parse([]string{header + "," + appended})
		if err == nil && elements[len(elements)-1].Cert != "gateway" {
			t.Errorf("last element is %+v, want that of the gateway", elements[len(elements)-1])
		}
	})
}
