package v1

import "k8s.io/apimachinery/pkg/runtime"

// The functions of this file are those that controller-gen writes for the kinds.

// DeepCopyObject implements [runtime.Object].
func (in *Cluster) DeepCopyObject() runtime.Object {
	out := *in
	in.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	return &out
}

// DeepCopyObject implements [runtime.Object].
func (in *ClusterList) DeepCopyObject() runtime.Object {
	out := *in
	in.ListMeta.DeepCopyInto(&out.ListMeta)
	out.Items = make([]Cluster, len(in.Items))
	for i := range in.Items {
		out.Items[i] = in.Items[i]
		in.Items[i].ObjectMeta.DeepCopyInto(&out.Items[i].ObjectMeta)
	}
	return &out
}

// DeepCopyObject implements [runtime.Object].
func (in *Addon) DeepCopyObject() runtime.Object {
	out := *in
	in.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	return &out
}

// DeepCopyObject implements [runtime.Object].
func (in *AddonList) DeepCopyObject() runtime.Object {
	out := *in
	in.ListMeta.DeepCopyInto(&out.ListMeta)
	out.Items = make([]Addon, len(in.Items))
	for i := range in.Items {
		out.Items[i] = in.Items[i]
		in.Items[i].ObjectMeta.DeepCopyInto(&out.Items[i].ObjectMeta)
	}
	return &out
}
