"""What makes a neuron important, a file a criterion."""
