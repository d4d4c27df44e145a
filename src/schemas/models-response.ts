/** What GET /v1/models answers. */
export interface ModelCard {
  id: string;
  object: 'model';
  /** Unix seconds. */
  created: number;
  owned_by: string;
  root: string;
  parent: string | null;
  max_model_len: number;
  permission: ModelPermission[];
}

export interface ModelPermission {
  id: string;
  object: 'model_permission';
  created: number;
  allow_create_engine: boolean;
  allow_sampling: boolean;
  allow_logprobs: boolean;
  allow_search_indices: boolean;
  allow_view: boolean;
  allow_fine_tuning: boolean;
  organization: string;
  group: null;
  is_blocking: boolean;
}

export interface ModelList {
  object: 'list';
  data: ModelCard[];
}

/** A model as clients of the Messages API know it. */
export interface ModelInfo {
  type: 'model';
  id: string;
  display_name: string;
  /** RFC 3339. */
  created_at: string;
  /** Prompt and reply share them. */
  max_input_tokens: number;
  max_tokens: number;
}

export interface ModelPage {
  data: ModelInfo[];
  /** In the direction in which was asked. */
  has_more: boolean;
  first_id: string | null;
  last_id: string | null;
}
