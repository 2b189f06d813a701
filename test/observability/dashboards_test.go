package observability

import "testing"

// TestDashboards fails when a file is stale, or when a panel or a variable names a metric, a label
// or a value that no process has.
func TestDashboards(t *testing.T) {
	exists := newKnown(t)
	for _, d := range dashboards() {
		compare(t, folder+"/dashboards/"+d.file+".json", d.render(t))
		for _, v := range d.variables {
			exists.check(t, d.file+" variable "+v.name, "sum by ("+v.label+") ("+v.metric+")")
		}
		for _, p := range d.panels {
			for _, q := range p.queries {
				exists.check(t, d.file+" "+p.title, q.expr)
			}
		}
	}
}
